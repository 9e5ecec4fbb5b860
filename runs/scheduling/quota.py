"""A namespace's quota against what it holds: sums over live attempts, plus what the pass grants. Pure."""

from typing import NamedTuple

from runs.scheduling.ordering import Shares
from runs.scheduling.types import NamespaceView, Refusal


class Amount(NamedTuple):
    """What is about to be granted to one run."""

    gpus: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0

    def plus(self, gpus: int, cpu_milli: int, memory_bytes: int) -> "Amount":
        return Amount(self.gpus + gpus, self.cpu_milli + cpu_milli, self.memory_bytes + memory_bytes)


NOTHING = Amount()


def is_limited(namespace: NamespaceView) -> bool:
    return (
        namespace.quota_gpus is not None
        or namespace.quota_cpu_milli is not None
        or namespace.quota_memory_bytes is not None
        or namespace.quota_runs is not None
    )


def refuse(shares: Shares, namespace_id: int, run_id: int, amount: Amount) -> Refusal | None:
    """Why the namespace may not have this much more for this run (`quota_…` with used, limit, wanted), or None."""
    namespace = shares.namespaces[namespace_id]
    if not is_limited(namespace):
        return None
    use = shares.use[namespace_id]
    new_runs = 0 if run_id in use.runs else 1
    for code, limit, used, wanted in (
        ("quota_runs", namespace.quota_runs, len(use.runs), new_runs),
        ("quota_gpus", namespace.quota_gpus, use.gpus, amount.gpus),
        ("quota_cpu", namespace.quota_cpu_milli, use.cpu_milli, amount.cpu_milli),
        ("quota_memory", namespace.quota_memory_bytes, use.memory_bytes, amount.memory_bytes),
    ):
        if limit is not None and wanted and used + wanted > limit:
            return Refusal(code, {"used": used, "limit": limit, "wanted": wanted})
    return None
