"""Names of runs and of their workers: one rule for every door. Pure."""

import re

RUN_NAME_MAX = 57
DNS_LABEL_MAX = 63
WORKERS_MAX = 10_000  # of one run

_RUN_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?", re.ASCII)
_DNS_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?", re.ASCII)


def name_faults(name: str, console: bool = False) -> list[str]:
    """Which rules of a run's or a group's name are broken, as sentences. The console takes lower case only."""
    faults = []
    if len(name) > RUN_NAME_MAX:
        faults.append(f"must be at most {RUN_NAME_MAX} characters")
    if _RUN_NAME.fullmatch(name) is None:
        faults.append("must be ASCII letters, digits, - and _, with no - at either end")
    elif console and name != name.lower():
        faults.append("must be lower case")
    return faults


def stem(run: str, group: str = "") -> str:
    """What a worker's name begins with: `<run>` or `<run>-<group>`."""
    return f"{run}-{group}" if group else run


def worker_name(run: str, rank: int, group: str = "") -> str:
    return f"{stem(run, group)}-{rank}"


def worker_names(run: str, count: int, group: str = "") -> list[str]:
    return [worker_name(run, rank, group) for rank in range(count)]


def host_name(worker: str) -> str:
    """A worker's name inside its container and on the network."""
    return worker.replace("_", "-")


def is_dns_safe(worker: str) -> bool:
    label = host_name(worker)
    return len(label) <= DNS_LABEL_MAX and _DNS_LABEL.fullmatch(label) is not None


def rank_label(run: str, worker: str) -> str:
    """A worker's name without its run's: `1`, or `<group>-1`."""
    return worker.removeprefix(f"{run}-")
