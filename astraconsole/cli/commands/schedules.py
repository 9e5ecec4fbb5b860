"""`astra astraeus schedules`."""

from pathlib import Path
from typing import Any

import click

from astraconsole.cli.client import connect, path
from astraconsole.cli.options import SAVED_NAME
from astraconsole.cli.output import as_json, dash, harmless, print_aligned, print_json, print_table
from astraconsole.cli.run_files import spec_of

OVERLAPS = ("Skip", "Allow", "Replace")


@click.group("schedules", invoke_without_command=True)
@as_json
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """The workspace's schedules: when each starts its next run, and what became of the last."""
    if context.invoked_subcommand is not None:
        return
    schedules = connect().workspace("GET", "schedules")["items"]
    if as_json:
        print_json(schedules)
        return
    rows = [(one["name"], one["cluster"], one["cron"], one["zone"], _next(one), _last(one)) for one in schedules]
    print_table((22, 14, 18, 18, 22), ("NAME", "CLUSTER", "CRON", "ZONE", "NEXT (UTC)", "LAST"), rows)


def _next(schedule: Any) -> str:
    if not schedule["enabled"]:
        return "disabled"
    return _to_the_minute(schedule["next_at"][0]) if schedule["next_at"] else "-"


def _last(schedule: Any) -> str:
    last = schedule["last"]
    if last is None:
        return "-"
    return f"{last['outcome']}: {last['run'] or last['message']}"


def _to_the_minute(moment: str) -> str:
    return moment[:16].replace("T", " ")


@command.command("show")
@click.argument("name", type=SAVED_NAME)
@as_json
def show(name: str, as_json: bool) -> None:
    """One schedule: its next times, and its last firing."""
    schedule = connect().workspace("GET", path("schedules", name))
    if as_json:
        print_json(schedule)
        return
    state = "enabled" if schedule["enabled"] else "disabled"
    click.echo(f"{name}: {state}, {schedule['cron']} in {schedule['zone']}, on {schedule['cluster']}")
    facts = [("next", _to_the_minute(at) + " UTC") for at in schedule["next_at"]]
    facts += [("overlap", schedule["overlap"]), ("last", _last(schedule)), ("error", dash(schedule["error"]))]
    print_aligned(facts, indent="  ")


@command.command("save")
@click.argument("name", type=SAVED_NAME)
@click.argument("file", required=False, type=click.Path(allow_dash=True, path_type=Path))
@click.option("--cron", required=True, help="Minute, hour, day of the month, month, day of the week: '0 3 * * 1-5'.")
@click.option("--zone", default="UTC", show_default=True, help="Whose clock: Europe/Berlin.")
@click.option("--overlap", type=click.Choice(OVERLAPS), default="Skip", show_default=True, help="While one still runs.")
@click.option("--from-run", help="A run's specification, instead of a FILE's.")
@as_json
def save(name: str, file: Path | None, cron: str, zone: str, overlap: str, from_run: str | None, as_json: bool) -> None:
    """Start a run on a timetable; a schedule that has the name already is replaced."""
    client = connect()
    timetable = {"name": name, "cluster": client.cluster, "cron": cron, "zone": zone, "overlap": overlap}
    schedule = client.workspace("POST", "schedules", json={**timetable, "spec": spec_of(client, file, from_run)})
    if as_json:
        print_json(schedule)
        return
    following = f"; next at {_to_the_minute(schedule['next_at'][0])} UTC" if schedule["next_at"] else ""
    click.echo(f"schedule {name} saved{following}")


@command.command("run")
@click.argument("name", type=SAVED_NAME)
@as_json
def run(name: str, as_json: bool) -> None:
    """Start a run of a schedule now, beside its timetable."""
    firing = _do(name, "run")
    if as_json:
        print_json(firing)
        return
    what = f"run {firing['run']}" if firing["run"] else firing["message"]
    click.echo(f"{name}: {firing['outcome']}: {harmless(what)}")


@command.command("enable")
@click.argument("name", type=SAVED_NAME)
@as_json
def enable(name: str, as_json: bool) -> None:
    """Let a schedule start runs again."""
    _tell(name, "enabled", _do(name, "enable"), as_json)


@command.command("disable")
@click.argument("name", type=SAVED_NAME)
@as_json
def disable(name: str, as_json: bool) -> None:
    """Let a schedule start no more runs, and keep it."""
    _tell(name, "disabled", _do(name, "disable"), as_json)


@command.command("remove")
@click.argument("name", type=SAVED_NAME)
@as_json
def remove(name: str, as_json: bool) -> None:
    """Remove a schedule; its runs stay."""
    connect().workspace("DELETE", path("schedules", name))
    _tell(name, "removed", {"name": name, "removed": True}, as_json)


def _do(name: str, verb: str) -> Any:
    return connect().workspace("POST", path("schedules", name, verb))


def _tell(name: str, done: str, document: Any, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        click.echo(f"schedule {name} {done}")
