"""What a job asks for, in Slurm's terms: its options brought together. Pure."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from astraconsole.cli.slurm.options import Given, ignored_of
from astraconsole.cli.slurm.script import NotRead, Refused, Script
from astraconsole.cli.slurm.values import (
    Array,
    GpuAsk,
    parse_array,
    parse_count,
    parse_dependency,
    parse_exclusive,
    parse_gpus,
    parse_gres,
    parse_nodes,
    parse_signal,
    parse_size,
    parse_time,
)
from runs.units import counted

T = TypeVar("T")
WHOLE_NODE = "whole node"
_TEXTS = (
    "account",
    "constraint",
    "reservation",
    "qos",
    "chdir",
    "dependency",
    "nodelist",
    "exclude",
    "begin",
    "output",
)
# An option of a later source (environment, command line) replaces what says the same in other words.
_FAMILIES = (
    {"mem", "mem-per-cpu", "mem-per-gpu"},
    {"cpus-per-task", "cpus-per-gpu"},
    {"gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres"},
    {"requeue", "no-requeue"},
)
_ONLY_ONE = (
    ("--mem, --mem-per-cpu and --mem-per-gpu", _FAMILIES[0]),
    ("--cpus-per-task and --cpus-per-gpu", _FAMILIES[1]),
)


@dataclass(frozen=True)
class Layout:
    """Totals are the job's; of one element of an array. `flexible`: more nodes, where one holds too few GPUs."""

    nodes: int
    tasks: int
    gpus_per_node: int
    gpus: int
    gpu_model: str
    cpus_per_node: int
    cpus: int
    mem_per_node: int | str | None  # None: not said
    mem: int | str | None
    flexible: bool

    @property
    def tasks_per_node(self) -> int:
        return math.ceil(self.tasks / self.nodes)


@dataclass
class Meaning:
    layout: Layout
    options: Mapping[str, Given]
    array: Array | None
    time_s: int | None
    mail: list[str]
    ignored: list[NotRead]
    notes: list[str] = field(default_factory=list)
    how_found: str = ""

    def text(self, name: str) -> str:
        """The value of an option, "" where it is not given."""
        return self.options[name].value if name in self.options else ""

    @property
    def exclusive(self) -> bool:
        return "exclusive" in self.options

    @property
    def whole_node(self) -> bool:
        return self.exclusive or self.layout.mem_per_node == WHOLE_NODE

    @property
    def gang(self) -> bool:
        return self.layout.nodes > 1

    def document(self) -> dict[str, Any]:
        """Sizes in bytes, times in seconds. What is not said is left out; `time_s` null is no limit."""
        layout = self.layout
        said = {
            "name": self.text("job-name"),
            "nodes": layout.nodes,
            "tasks": layout.tasks,
            "tasks_per_node": layout.tasks_per_node,
            "gpus": layout.gpus,
            "gpus_per_node": layout.gpus_per_node,
            "gpu_model": layout.gpu_model,
            "cpus": layout.cpus,
            "cpus_per_node": layout.cpus_per_node,
            "mem_bytes": layout.mem,
            "mem_bytes_per_node": layout.mem_per_node,
            "exclusive": self.exclusive,
            "requeue": "requeue" in self.options,
            "gang": self.gang,
            "array": _array_document(self.array),
            "signal": self._signal(),
            "partition": _one_or_many(self.text("partition")),
            "mail": self.mail,
            "licenses": self.text("licenses"),
            "ignored": list(dict.fromkeys(item.label for item in self.ignored)),
            "note": self.how_found,
            **{name: self.text(name) for name in _TEXTS},
        }
        return {name: value for name, value in said.items() if value not in (None, "", [])} | {"time_s": self.time_s}

    def _signal(self) -> dict[str, Any] | None:
        if "signal" not in self.options:
            return None
        signal = parse_signal(self.text("signal"))
        return {"name": signal.name, "before_s": signal.before_s, "batch_only": signal.batch_only}


def understand(script: Script, environment: Sequence[Given] = (), command_line: Sequence[Given] = ()) -> Meaning:
    """A script's options, with those of the environment over them and the command line's over both.

    Raises Refused with one sentence for each bad value.
    """
    reader = _Reader(_merged(script.given, environment, command_line))
    for unknown in script.unknown:
        if unknown.wrong:
            reader.faults.append(f"{unknown.where} {unknown.why}")
    for names, family in _ONLY_ONE:
        if len(family & reader.options.keys()) > 1:
            reader.faults.append(f"{names} exclude one another")
    array, time_s = reader.read("array", parse_array), reader.read("time", parse_time)
    reader.read("signal", parse_signal)
    reader.read("dependency", parse_dependency)
    if among := reader.read("exclusive", parse_exclusive):
        reader.notes.append(f"--exclusive={among}: a machine of its own, which it shares with nothing")
    layout = _layout(reader)
    if reader.faults:
        raise Refused(sorted(reader.faults, key=_line_of))
    given = [*script.given, *environment, *command_line]
    ignored = [NotRead(option.line, option.text, why) for option, why in ignored_of(given)]
    ignored += [NotRead(unknown.line, unknown.text, unknown.why) for unknown in script.unknown]
    ignored += [*script.not_read, *reader.ignored]
    mail = [part for option in given if option.name == "mail-type" for part in option.value.split(",")]
    return Meaning(
        layout=layout,
        options=reader.options,
        array=array,
        time_s=time_s,
        mail=mail,
        ignored=sorted(ignored, key=lambda item: (item.line == 0, item.line)),
        notes=reader.notes,
        how_found=script.note,
    )


def _merged(*sources: Sequence[Given]) -> dict[str, Given]:
    """The last one counts, and a source silences its predecessors' other words for the same."""
    merged: dict[str, Given] = {}
    for source in sources:
        names = {given.name for given in source}
        for family in _FAMILIES:
            if names & family:
                merged = {name: given for name, given in merged.items() if name not in family}
        merged |= {given.name: given for given in source}
    last = [given.name for source in sources for given in source if given.name in _FAMILIES[3]][-1:]
    return {name: given for name, given in merged.items() if name not in _FAMILIES[3] or name in last}


class _Reader:
    """Reads options' values; a bad one is a fault, and reads as its default so that the others are looked at too."""

    def __init__(self, options: dict[str, Given]) -> None:
        self.options = options
        self.faults: list[str] = []
        self.notes: list[str] = []
        self.ignored: list[NotRead] = []

    def read(self, name: str, parse: Callable[[str], T]) -> T | None:
        if name not in self.options:
            return None
        try:
            return parse(self.options[name].value)
        except ValueError as error:
            self.faults.append(f"{self.options[name].where} {error}")
            return None

    def gres(self) -> GpuAsk | None:
        gpus, others = self.read("gres", parse_gres) or (None, [])
        line = self.options["gres"].line if others else 0
        self.ignored += [NotRead(line, f"--gres={other}", "only whole GPUs are counted") for other in others]
        return gpus


def _layout(reader: _Reader) -> Layout:
    stated_nodes = reader.read("nodes", parse_nodes)
    ntasks, per_node = reader.read("ntasks", parse_count), reader.read("ntasks-per-node", parse_count)
    per_gpu = reader.read("ntasks-per-gpu", parse_count)
    gpus = _Gpus(reader, ntasks, per_gpu)
    nodes = _nodes(reader, stated_nodes, ntasks, per_node, gpus)
    tasks = ntasks or _implied_tasks(nodes, per_node, per_gpu, gpus)
    tasks_on_one = math.ceil(tasks / nodes)
    if per_node and ntasks and ntasks > nodes * per_node:
        reader.faults.append(f"{ntasks} tasks do not fit on {nodes} nodes with {per_node} each")
    gpus_per_node = gpus.on_one_node(nodes, tasks_on_one)
    total_gpus = gpus.per_task * tasks if gpus.only_per_task else gpus_per_node * nodes
    cpus_on_one, cpus = _cpus(reader, tasks_on_one, tasks, gpus_per_node, total_gpus)
    mem_on_one, mem = _memory(reader, (nodes, cpus, total_gpus), (cpus_on_one, gpus_per_node))
    alone = not any(
        (stated_nodes, ntasks, per_node, gpus.per_node, reader.options.keys() & {"mem", "exclusive", "array"})
    )
    return Layout(
        nodes=nodes,
        tasks=tasks,
        gpus_per_node=gpus_per_node,
        gpus=total_gpus,
        gpu_model=gpus.model,
        cpus_per_node=cpus_on_one,
        cpus=cpus,
        mem_per_node=mem_on_one,
        mem=mem,
        flexible=alone and gpus.total > 1,
    )


class _Gpus:
    """The four ways to ask for GPUs, which must agree. 0: not said."""

    def __init__(self, reader: _Reader, ntasks: int | None, tasks_per_gpu: int | None) -> None:
        total, per_node = reader.read("gpus", parse_gpus), reader.read("gpus-per-node", parse_gpus)
        per_task, gres = reader.read("gpus-per-task", parse_gpus), reader.gres()
        per_socket = self._per_socket(reader)
        asks = [ask for ask in (total, per_node, per_task, per_socket, gres) if ask is not None]
        models = {ask.model.lower(): ask.model for ask in asks if ask.model}
        if len(models) > 1:
            reader.faults.append(f"the GPU models contradict one another: {', '.join(models.values())}")
        if per_node and gres and per_node.count != gres.count:
            reader.faults.append(f"--gpus-per-node asks for {per_node.count} GPUs per node and --gres for {gres.count}")
        self.reader = reader
        self.model = next(iter(models.values()), "") if any(ask.count for ask in asks) else ""
        self.total = total.count if total else 0
        self.per_task = per_task.count if per_task else 0
        self.per_node = (per_node or gres or per_socket or GpuAsk(0)).count
        if ntasks and tasks_per_gpu and not asks:
            self.total = math.ceil(ntasks / tasks_per_gpu)

    @staticmethod
    def _per_socket(reader: _Reader) -> GpuAsk | None:
        """Of one node: sbatch takes it only with the number of sockets."""
        each, sockets = reader.read("gpus-per-socket", parse_gpus), reader.read("sockets-per-node", parse_count)
        if each is None:
            return None
        if sockets is None:
            where = reader.options["gpus-per-socket"].where
            reader.faults.append(f"{where} needs --sockets-per-node: or use --gpus-per-node")
            return None
        return GpuAsk(each.count * sockets, each.model)

    @property
    def only_per_task(self) -> bool:
        return bool(self.per_task) and not self.total and not self.per_node

    def on_one_node(self, nodes: int, tasks_on_one: int) -> int:
        for_tasks = self.per_task * tasks_on_one
        if self.total % nodes:
            self.reader.faults.append(f"{self.total} GPUs do not split evenly over {nodes} nodes")
        share = self.total // nodes
        if self.per_node and share and share != self.per_node:
            self.reader.faults.append(
                f"--gpus={self.total} on {nodes} nodes is {share} per node, and {self.per_node} per node are asked for"
            )
        stated = self.per_node or share
        if stated and stated < for_tasks:
            self.reader.faults.append(
                f"{tasks_on_one} tasks per node with {self.per_task} GPUs each need {for_tasks} GPUs, "
                f"and {stated} per node are asked for"
            )
        return stated or for_tasks


def _nodes(
    reader: _Reader, stated: tuple[int, int] | None, ntasks: int | None, per_node: int | None, gpus: _Gpus
) -> int:
    if stated is not None:
        least, most = stated
        if most > least:
            reader.notes.append(f"{least} nodes, the least of {least}-{most}: a run has a fixed number of workers")
        if ntasks is not None and ntasks < least:
            reader.notes.append(f"{counted(ntasks, 'node')}: there are no more tasks")
            return ntasks
        return least
    if ntasks and per_node:
        return math.ceil(ntasks / per_node)
    if gpus.total and gpus.per_node:
        return math.ceil(gpus.total / gpus.per_node)
    return 1


def _implied_tasks(nodes: int, per_node: int | None, per_gpu: int | None, gpus: _Gpus) -> int:
    if per_node:
        return nodes * per_node
    if per_gpu and (gpus.total or gpus.per_node):
        return per_gpu * (gpus.total or gpus.per_node * nodes)
    if gpus.per_task and gpus.total:
        return max(gpus.total // gpus.per_task, 1)
    return nodes


def _cpus(reader: _Reader, tasks_on_one: int, tasks: int, gpus_on_one: int, gpus: int) -> tuple[int, int]:
    """(per node, in all)."""
    per_gpu = reader.read("cpus-per-gpu", parse_count)
    if per_gpu is not None:
        if not gpus:
            reader.faults.append("--cpus-per-gpu needs GPUs")
        return per_gpu * gpus_on_one, per_gpu * gpus
    per_task = reader.read("cpus-per-task", parse_count) or 1
    return per_task * tasks_on_one, per_task * tasks


def _memory(
    reader: _Reader, totals: tuple[int, int, int], on_one: tuple[int, int]
) -> tuple[int | str | None, int | str | None]:
    """(per node, in all). `totals`: nodes, cores, GPUs; `on_one`: cores and GPUs of one node."""
    nodes, cpus, gpus = totals
    per_node = reader.read("mem", parse_size)
    per_cpu, per_gpu = reader.read("mem-per-cpu", parse_size), reader.read("mem-per-gpu", parse_size)
    if 0 in (per_node, per_cpu, per_gpu):
        return WHOLE_NODE, WHOLE_NODE
    if per_node is not None:
        return per_node, per_node * nodes
    if per_cpu is not None:
        return per_cpu * on_one[0], per_cpu * cpus
    if per_gpu is not None:
        if not gpus:
            reader.faults.append("--mem-per-gpu needs GPUs")
        return per_gpu * on_one[1], per_gpu * gpus
    return None, None


def _array_document(array: Array | None) -> dict[str, Any] | None:
    if array is None:
        return None
    document: dict[str, Any] = {
        "size": len(array.indices),
        "first": array.indices[0],
        "last": array.indices[-1],
        "indices": array.spelled(),
    }
    return document | ({"max_parallel": array.max_parallel} if array.max_parallel else {})


def _line_of(fault: str) -> int:
    match = re.match(r"line (\d+):", fault)
    return int(match[1]) if match else 0


def _one_or_many(text: str) -> str | list[str]:
    return text.split(",") if "," in text else text
