"""Our own specification in YAML, and the short form whose fields are those of `astra astraeus run`. Pure."""

from decimal import Decimal
from typing import Any

from astraconsole.cli.manifests.reading import Imported, LeftOut, Part, Refused, run_name
from astraconsole.cli.manifests.shares import Share, totals
from runs.units import parse_cores, parse_duration, parse_memory

SHORT = frozenset(
    {"name", "image", "gpus", "machines", "cpus", "mem", "memory", "time", "env", "pool", "command", "args"}
)


def read_specification(document: dict[str, Any]) -> Imported:
    """As it is: `astra astraeus submit` takes such files too."""
    return Imported(document, {})


def read_short(document: dict[str, Any]) -> Imported:
    """`mem` needs a unit: 0.5 could be bytes, GiB or half of a machine."""
    left_out: list[LeftOut] = []
    root = Part(document, "", left_out)
    gpus, machines = root.count("gpus", 0), root.count("machines", 0)
    name, units = run_name(root.text("name"), "run"), max(gpus, 1)
    share = Share(
        cores=_cores(root.text("cpus")),
        memory=_memory(root.text("mem") or root.text("memory")),
        gpus=gpus,
    )
    amount = Share(share.cores, share.memory).resources(1)
    resources = {"gpu_requests": {"count": gpus}, "per_gpu": amount} if gpus else amount
    template: dict[str, Any] = {"requested_resources": resources}
    if image := root.text("image"):
        template["image"] = image
    command = root.texts("command") + root.texts("args")
    if command:
        template |= {"command": command[0], "args": command[1:]}
    if environment := root.part("env").value:
        template["env"] = {str(name): str(value) for name, value in environment.items()}
    if limit := root.text("time"):
        try:
            template["time_limit_seconds"] = parse_duration(limit, plain="minutes", slurm=True)
        except ValueError as error:
            raise Refused(f"time: {error}") from error
    spec: dict[str, Any] = {"task_template": template}
    if machines:
        spec["machines"] = machines
    if pool := root.text("pool"):
        spec["node_selection"] = {"pools": [pool]}
    root.leave_rest(why="is no field of a run: see astra astraeus run --help")
    left_out += share.defaults("resources")
    per_gpu = Share(share.cores and share.cores * units, share.memory and share.memory * units, gpus)
    meaning = totals([(max(machines, 1), per_gpu)])
    return Imported({"metadata": {"name": name}, "spec": spec}, meaning, left_out)


def _cores(text: str) -> Decimal | None:
    if not text:
        return None
    try:
        return Decimal(parse_cores(text)) / 1000
    except ValueError as error:
        raise Refused(f"cpus: {error}") from error


def _memory(text: str) -> int | None:
    if not text:
        return None
    if text.replace(".", "", 1).isdigit():
        raise Refused(f"memory {text} has no unit: bytes, GiB or a share of a machine? Write 512Mi or 64Gi")
    try:
        return parse_memory(text, plain="MiB")
    except ValueError as error:
        raise Refused(f"memory: {error}") from error
