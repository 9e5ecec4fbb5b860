"""`astra astraeus usage`."""

import csv
import io
import re
from typing import Any

import click

from astraconsole.cli.client import connect
from astraconsole.cli.output import as_json, dash, print_json, print_table

_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
FIELDS = ("month", "organisation", "workspace", "user", "gpu_hours")


@click.command("usage")
@click.option("--month", metavar="2026-01", help="Of this month of UTC alone.  [default: the last twelve]")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, as the console's Usage page gives it.")
@as_json
def command(month: str | None, as_csv: bool, as_json: bool) -> None:
    """GPU-hours that the workspace's runs held, by month and by who started them."""
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude one another")
    if month and _MONTH.fullmatch(month) is None:
        raise click.BadParameter(f"{month!r} is not a month: write 2026-01", param_hint="--month")
    months = {"from": month, "to": month} if month else {}
    used = connect().workspace("GET", "usage", params=months)["items"]
    if as_json:
        print_json(used)
    elif as_csv:
        _print_csv(used)
    else:
        rows = [(one["month"], dash(one["user"]), f"{one['gpu_hours']:,.2f}") for one in used]
        print_table((10, 30), ("MONTH", "USER", "GPU-HOURS"), rows)


def _print_csv(used: list[Any]) -> None:
    text = io.StringIO()
    writer: Any = csv.writer(text)
    writer.writerow(FIELDS)
    writer.writerows([one["user"] or "" if name == "user" else one[name] for name in FIELDS] for one in used)
    click.echo(text.getvalue(), nl=False)
