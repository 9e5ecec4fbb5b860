"""`astra astraeus run`."""

import random
import re
from pathlib import Path, PurePath
from typing import Any

import click
from click.core import ParameterSource

from astraconsole.cli import options
from astraconsole.cli.client import connect
from astraconsole.cli.options import CORES, DURATION, MEMORY
from astraconsole.cli.output import as_json, harmless
from astraconsole.cli.saved import find_template
from astraconsole.cli.sent_code import sent_code
from astraconsole.cli.submitting import submit

MODEL_PATH = "/model"
OF_TEMPLATE = ("image", "gpus", "machines", "cpus", "mem", "limit", "env", "code", "pool", "model", "model_path",
               "with_engine", "argv")  # fmt: skip


@click.command("run")
@click.option("--name", help="The run's name.  [default: from the command]")
@click.option(
    "--image", envvar="ASTRA_IMAGE", help="The container image; required unless --template.  [default: $ASTRA_IMAGE]"
)
@click.option("-g", "--gpus", type=click.IntRange(0), default=0, show_default=True, help="GPUs for the whole run.")
@click.option(
    "--machines", type=click.IntRange(0), default=0, show_default=True, help="Exactly this many, GPUs split evenly."
)
@click.option("--cpus", type=CORES, default="4", show_default=True, help="Cores, per GPU when there are GPUs.")
@click.option("--mem", type=MEMORY, default="16G", show_default=True, help="Memory, likewise: 64G, 512M; plain is MiB.")
@click.option("--time", "limit", type=DURATION, help="Time limit: 2h, 1h30m, 90 (minutes), 02:00:00, 1-00:00:00.")
@click.option("-e", "--env", multiple=True, metavar="KEY=value", help="Repeatable.")
@click.option(
    "--code", type=click.Path(path_type=Path), help="Pack this folder; the command runs in it, in /workspace."
)
@click.option("--template", help="Start from a template of the workspace, as it is.")
@click.option("--pool", help="Only machines labelled pool=<value>.")
@click.option("--model", help="Mount a model of the workspace.")
@click.option("--model-path", default=MODEL_PATH, show_default=True, help="Where; needs --model.")
@click.option("--with-engine", is_flag=True, help="Serve the model beside the run; needs --model.")
@options.wait
@options.dry_run
@click.argument("argv", nargs=-1, metavar="-- COMMAND [ARGS]...")
@as_json
def command(
    argv: tuple[str, ...],
    name: str | None,
    template: str | None,
    wait: bool,
    dry_run: bool,
    as_json: bool,
    **chosen: Any,
) -> int:
    """Submit a run. A failed worker fails it at once; nothing is restarted."""
    context = click.get_current_context()
    if template is None:
        _refuse_contradictions(argv, context, **chosen)
        client = connect()
        spec = _spec(argv, **chosen)
    else:
        client = connect()
        spec = find_template(client, template)["spec"]
        _say_ignored(context, template)
        argv = (str(spec.get("task_template", {}).get("command") or ""),)
    body = {"metadata": {"name": name or default_name(argv)}, "spec": spec}
    return submit(client, body, dry_run=dry_run, wait=wait, as_json=as_json)


def default_name(argv: tuple[str, ...]) -> str:
    """After the command: `python-48213`."""
    stem = re.sub(r"[^a-z0-9]+", "-", PurePath(argv[0]).name.lower()).strip("-")[:40] if argv else ""
    return f"{stem.strip('-') or 'run'}-{random.randrange(10_000, 100_000)}"


def _refuse_contradictions(
    argv: tuple[str, ...], context: click.Context, *, image: str | None, code: Path | None, model: str | None, **_: Any
) -> None:
    """Raises UsageError."""
    if not image:
        raise click.UsageError("which image? Give --image, or set ASTRA_IMAGE")
    if code is not None and not argv:
        raise click.UsageError("--code needs a command: … --code . -- python train.py")
    for option in ("model_path", "with_engine"):
        if model is None and context.get_parameter_source(option) == ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{option.replace('_', '-')} needs --model")


def _say_ignored(context: click.Context, template: str) -> None:
    given = [parameter for parameter in OF_TEMPLATE if _is_given(context, parameter)]
    if given:
        names = {"limit": "--time", "argv": "the command"}
        shown = ", ".join(names.get(one, f"--{one.replace('_', '-')}") for one in given)
        click.echo(f"(the template {harmless(template)} is used as it is: {shown} ignored)", err=True)


def _is_given(context: click.Context, parameter: str) -> bool:
    return bool(context.params.get(parameter)) and (
        context.get_parameter_source(parameter) == ParameterSource.COMMANDLINE
    )


def _spec(
    argv: tuple[str, ...], *, image: str, gpus: int, machines: int, cpus: int, mem: int, limit: int | None,
    env: tuple[str, ...], code: Path | None, pool: str | None, model: str | None, model_path: str, with_engine: bool,
) -> dict[str, Any]:  # fmt: skip
    amount = {"cpu_cores": cpus / 1000, "memory_bytes": mem}
    resources = {"gpu_requests": {"count": gpus}, "per_gpu": amount} if gpus else amount
    template: dict[str, Any] = {"image": image, "requested_resources": resources, "restart_policy": "Never"}
    if argv:
        template |= {"command": argv[0], "args": list(argv[1:])}
    if env:
        template["env"] = dict(_pair(item) for item in env)
    if limit is not None:
        template["time_limit_seconds"] = limit
    if model:
        template["model_refs"] = [{"name": model, "mount_path": model_path}]
    spec: dict[str, Any] = {"task_template": template}
    if machines:
        spec["machines"] = machines
    if pool:
        spec["node_selection"] = {"pools": [pool]}
    if code is not None:
        spec["code"] = sent_code(code, "(--code leaves out {})")
    if model and with_engine:
        spec["engine"] = {"model": model}
    return spec


def _pair(item: str) -> tuple[str, str]:
    key, separator, value = item.partition("=")
    if not separator or not key:
        raise click.BadParameter(f"{item!r} is not KEY=value", param_hint="--env")
    return key, value
