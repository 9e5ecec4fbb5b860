"""Recorded traces, as CSV: how their columns become jobs and machines. Pure.

Jobs: `job, submit_s, duration_s`, then `gpus`, `gpu_model` (`A|B`: either), `cpu`/`cpu_per_node`, `mem_bytes`, `nodes`
as far as the file has them, and `walltime_limit_s`. Amounts are the job's total, but for `cpu_per_node`. Empty: none. A
share of a GPU (`gpu_milli`) counts as the whole GPU that `gpus` says. Machines: `name, gpus, cpu, mem_bytes`; without
cores or memory: no limit. Empty lines and those that begin with # are passed over. What cannot be read raises
TraceError, which names the line and the column.
"""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from runs.names import WORKERS_MAX
from runs.scheduling.simulator import Job
from runs.scheduling.types import ANYWHERE, Ask, Constraints, GpuView, MachineView

Row: TypeAlias = Mapping[str, str | None]
Rows: TypeAlias = Iterable[tuple[int, Row]]  # each with its line's number
PLENTY = 2**40
MOST = 2.0**53  # of anything: what floating point still counts exactly
GPUS_MAX = 1024  # of one machine
MACHINES_MAX = 100_000


class TraceError(ValueError):
    """A file that is no trace, in a sentence."""


def rows_of(lines: Iterable[str]) -> Iterator[tuple[int, Row]]:
    """What a file says, row by row, under the names of its first line."""
    numbers: list[int] = []

    def said() -> Iterator[str]:
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.startswith("#"):
                numbers.append(number)
                yield line

    reader = csv.DictReader(said(), skipinitialspace=True, strict=True)
    names = reader.fieldnames or ()
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise TraceError(f"line {numbers[0]}: the column {twice[0]} is named twice")
    for row in reader:
        at = numbers[reader.line_num - 1]
        if None in row:
            raise TraceError(f"line {at}: more fields than the {len(names)} columns that the first line names")
        yield at, row


def read_machines(rows: Rows) -> list[MachineView]:
    machines: list[MachineView] = []
    for at, row in rows:
        line, number = _Line(at, row), len(machines)
        if number == MACHINES_MAX:
            raise TraceError(f"there are more than {MACHINES_MAX:,} machines")
        count = line.whole("gpus", GPUS_MAX)
        gpus = tuple(GpuView(index, row.get("gpu_model") or "GPU", 0) for index in range(count))
        cpu_milli = int((line.number("cpu") or PLENTY) * 1000)
        memory = int(line.number("mem_bytes")) or PLENTY
        machines.append(MachineView(number, line.text("name"), cpu_milli, memory, gpus))
    if not machines:
        raise TraceError("there are no machines")
    return machines


def equal_machines(count: int, gpus: int) -> list[MachineView]:
    return read_machines((number + 2, {"name": f"n{number}", "gpus": str(gpus)}) for number in range(count))


def read_jobs(rows: Rows, machines: Sequence[MachineView]) -> list[Job]:
    jobs = []
    for at, row in rows:
        line = _Line(at, row)
        limit = line.number("walltime_limit_s") if line.has("walltime_limit_s") else None
        submitted, duration = line.number("submit_s", needed=True), line.number("duration_s", needed=True)
        jobs.append(Job(line.text("job"), submitted, duration, _asks(line, machines), limit))
    if not jobs:
        raise TraceError("there are no jobs")
    return jobs


def _asks(line: "_Line", machines: Sequence[MachineView]) -> tuple[Ask, ...]:
    """More GPUs or cores than any machine has are spread over whole machines; memory evenly, at most a machine's."""
    count = line.whole("nodes") if line.has("nodes") else 1
    if not count:
        raise line.error("nodes", "must be at least 1")
    gpus = math.ceil(line.whole("gpus") / count)
    cores = line.number("cpu_per_node") or line.number("cpu") / count
    most_gpus = max(len(machine.gpus) for machine in machines)
    most_cores = max(machine.cpu_milli for machine in machines) / 1000
    if gpus > most_gpus > 0:
        count, gpus = math.ceil(gpus / most_gpus), most_gpus
    if cores > most_cores:
        count, cores = count * math.ceil(cores / most_cores), most_cores
    if count > WORKERS_MAX:
        raise TraceError(f"line {line.at}: the job needs {count:,} workers, more than a run may have ({WORKERS_MAX:,})")
    memory = min(int(line.number("mem_bytes")) // count, max(machine.memory_bytes for machine in machines))
    models = tuple(model for model in (line.row.get("gpu_model") or "").split("|") if model)
    constraints = Constraints(gpu_models=models) if gpus and models else ANYWHERE
    return (Ask(gpus, int(cores * 1000), memory, constraints=constraints),) * count


class _Line:
    """One row of a file, and where it stands."""

    def __init__(self, at: int, row: Row) -> None:
        self.at, self.row = at, row

    def has(self, column: str) -> bool:
        return bool((self.row.get(column) or "").strip())

    def error(self, column: str, rule: str) -> TraceError:
        return TraceError(f"line {self.at}: {column} {rule}")

    def text(self, column: str) -> str:
        if column not in self.row:
            columns = ", ".join(str(name) for name in self.row if name)
            raise TraceError(f"there is no column {column}; the first line names {columns}")
        if not self.has(column):
            raise self.error(column, "is empty")
        return str(self.row[column]).strip()

    def number(self, column: str, needed: bool = False) -> float:
        """At least 0; 0 where the file says nothing."""
        if not needed and not self.has(column):
            return 0.0
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= MOST:
            raise self.error(column, f"is no number of use here: {text[:40]!r}")
        return value

    def whole(self, column: str, most: int = 2**31) -> int:
        value = self.number(column)
        if value != int(value) or value > most:
            raise self.error(column, f"must be a whole number up to {most:,}: {str(self.row[column])[:40]!r}")
        return int(value)
