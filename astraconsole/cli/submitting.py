"""Submitting a run, from options or from a file: trying it without consequences, and waiting for its end."""

from typing import Any

import click

from astraconsole.cli.client import Client, path
from astraconsole.cli.following import ENDS, Follower, Patience
from astraconsole.cli.log_printing import Plain, follow
from astraconsole.cli.output import Progress, harmless, print_aligned, print_json, print_state, say_submitted
from astraconsole.cli.problems import Exit, Refused
from astraconsole.errors import NotFound
from runs.units import counted, format_cores, format_duration, format_memory


def submit(client: Client, body: Any, *, dry_run: bool, wait: bool, as_json: bool) -> int:
    """The exit code: of the run, where its end is waited for."""
    if dry_run:
        _say_tried(client.post("jobs", body, dry_run=True), client.cluster, as_json)
        return Exit.DONE
    run = client.post("jobs", body)
    name = run["metadata"]["name"]
    if not as_json:
        say_submitted(run, client.cluster, client.page_of(name))
    elif not wait:
        print_json(run)
    return _wait(client, name, as_json) if wait else Exit.DONE


def _say_tried(tried: Any, cluster: str, as_json: bool) -> None:
    if as_json:
        print_json(tried)
        return
    click.echo(f"{tried['metadata']['name']} is valid on {cluster}: {harmless(tried['forecast']['text'])}")
    print_aligned([(worker["name"], *_asks(worker)) for worker in tried["workers"]], indent="  ")
    limit = tried["spec"]["task_template"].get("time_limit_seconds")
    if limit is not None:
        click.echo(f"  time limit {format_duration(limit)}")
    click.echo("Nothing was submitted.")


def _asks(worker: Any) -> tuple[str, str, str]:
    gpus = counted(worker["gpus"], "GPU")
    if worker["node_fraction"] is not None:
        return gpus, f"{worker['node_fraction']:.0%} of a machine", ""
    cores = format_cores(round(worker["cpu_cores"] * 1000))
    return gpus, f"{cores} core" if cores == "1" else f"{cores} cores", format_memory(worker["memory_bytes"])


def _wait(client: Client, name: str, as_json: bool) -> int:
    """Follow the first worker's log until the run ends."""
    code, run = wait_for_end(client, name, show_log=not as_json)
    if run is not None and as_json:
        print_json(run)
    elif run is not None:
        click.echo()
        print_state(name, run["status"]["state"], run["status"]["reason"])
    return code


def wait_for_end(client: Client, name: str, show_log: bool) -> tuple[Exit, Any]:
    """(exit code, the run as it ended). Without a run where it was deleted or Ctrl-C came, which ends the waiting, not
    the run: both are said."""
    try:
        run = _ended(client, name, show_log)
    except KeyboardInterrupt:
        click.echo(f"\n{name} goes on; to stop it: astra astraeus stop {name}", err=True)
        return Exit.INTERRUPTED, None
    if run is None:
        click.echo(f"{name} was deleted meanwhile", err=True)
        return Exit.GONE, None
    return ENDS[run["status"]["state"]], run


def _ended(client: Client, name: str, show_log: bool) -> Any:
    """The run once it has ended; None when it was deleted."""
    progress = Progress()
    patience = Patience(lambda note: click.echo(f"({harmless(note)})", err=True))
    followed, state = not show_log, ""
    while True:
        try:
            run = patience.ask(lambda: client.get(path("jobs", name)))
        except Refused as refusal:
            progress.clear()
            if refusal.code == NotFound.code:
                return None
            raise
        if run is not None and not followed and run["task_names"]:
            progress.clear()
            follow([Follower(client, run["task_names"][0])], Plain())
            followed = True
            continue
        if run is not None and run["status"]["state"] in ENDS:
            progress.clear()
            return run
        changed = run is not None and run["status"]["state"] != state
        if run is not None:
            state = run["status"]["state"]
            progress.show(f"{name}: {state} — {run['status']['reason']}")
        patience.pause(busy=changed)
