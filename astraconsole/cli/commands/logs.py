"""`astra astraeus logs`."""

from typing import Any

import click

from astraconsole.cli.client import Client, connect, path
from astraconsole.cli.following import ENDS, Follower
from astraconsole.cli.log_printing import JsonLines, Plain, Prefixed, Printer, follow
from astraconsole.cli.options import NAME
from astraconsole.cli.output import as_json, print_json, print_json_line, print_state
from astraconsole.cli.problems import Exit, Problem, Refused
from astraconsole.errors import TaskNotPlaced

TAIL = 1000


@click.command("logs")
@click.argument("name", metavar="RUN|WORKER", type=NAME)
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the worker ends; tell how by exit code.")
@click.option("--tail", type=click.IntRange(1, 10_000), default=TAIL, show_default=True, help="Lines from the end.")
@click.option("--attempt", type=click.IntRange(1), help="Of this placement of the worker, not of the newest.")
@click.option("--all-workers", is_flag=True, help="Of every worker of the run, each line behind its worker's name.")
@as_json
def command(name: str, following: bool, tail: int, attempt: int | None, all_workers: bool, as_json: bool) -> int:
    """The end of a run's log (its first worker's), or of one worker's."""
    client = connect()
    workers = _workers(client, name, all_workers)
    if following:
        return _follow(client, workers, tail, attempt, as_json)
    answers = [answer for worker in workers if (answer := _log(client, worker, tail, attempt, len(workers) > 1))]
    if as_json:
        print_json(answers if all_workers else answers[0])
        return Exit.DONE
    printer: Printer = Prefixed() if all_workers else Plain()
    for answer in answers:
        if answer.get("archived"):
            click.echo(f"({answer['task_name']}: from a container that no longer exists)", err=True)
        printer.write(answer["task_name"], answer["logs"].encode())
        if all_workers:
            printer.finish()
    return Exit.DONE


def _workers(client: Client, name: str, everyone: bool) -> list[str]:
    """A run's first worker, or all; a name that is no run is a worker's."""
    run, worker = client.run_or_worker(name)
    if worker is not None:
        if everyone:
            raise Problem(f"--all-workers is for a run, and {name} is none")
        return [name]
    names = [str(worker) for worker in run["task_names"]]
    if not names:
        raise Problem(f"{name} has no workers yet: {run['status']['reason']}")
    return names if everyone else names[:1]


def _log(client: Client, worker: str, tail: int, attempt: int | None, of_many: bool) -> dict[str, Any] | None:
    """None for one of many workers that has no log yet."""
    try:
        chosen = {} if attempt is None else {"attempt": attempt}
        answer: dict[str, Any] = client.get(path("tasks", worker, "logs"), tail=tail, **chosen)
    except Refused as refusal:
        if of_many and refusal.code == TaskNotPlaced.code:
            click.echo(f"({worker}: no log yet)", err=True)
            return None
        raise
    return answer


def _follow(client: Client, workers: list[str], tail: int, attempt: int | None, as_json: bool) -> int:
    followers = [Follower(client, worker, tail=tail, only_attempt=attempt) for worker in workers]
    printer: Printer = JsonLines() if as_json else Prefixed() if len(followers) > 1 else Plain()
    follow(followers, printer)
    for number, follower in enumerate(followers):
        if follower.state not in ENDS and not follower.gone:
            continue  # an earlier attempt was followed: the worker goes on
        state, reason = ("Deleted", "deleted meanwhile") if follower.gone else (follower.state, follower.reason)
        if as_json:
            print_json_line({"task_name": follower.worker, "status": {"state": state, "reason": reason}})
            continue
        if number == 0:
            click.echo()
        print_state(follower.worker, state, reason)
    return max(follower.exit_code for follower in followers)
