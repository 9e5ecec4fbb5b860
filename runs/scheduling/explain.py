"""Refusals as sentences: the one place where a reason for waiting is worded. Pure.

A code is one of `SENTENCES`; `sentence` fills in its numbers. The rows stand in rank order: what is wrong with the
request, what keeps it from any machine, quota, the queue. `machine_sentence` words a filter's refusal in the table of
machines. Nothing here names another run.
"""

from collections.abc import Callable
from datetime import UTC, datetime

from runs.scheduling.types import Numbers
from runs.units import counted, format_cores, format_memory


def sentence(code: str, numbers: Numbers) -> str:
    """The API's reason of a waiting run, without a final stop. Raises KeyError for an unknown code."""
    return SENTENCES[code](numbers)


def is_for_good(code: str) -> bool:
    """Whether no waiting would lift the refusal: only other machines, or another request."""
    return code.startswith(("never_", "plan_"))


def is_for_room(code: str) -> bool:
    """Whether the run waits in the queue, so that it matters who is ahead."""
    return code in ("gang", "next", "queued", "preempting")


def what_it_takes(code: str) -> str:
    """What has to happen before it starts, or may be done about it; "" where the queue says all."""
    kind = "never" if is_for_good(code) else code if code in TAKES else code.partition("_")[0]
    return TAKES.get(kind, "")


TAKES = {
    "never": "Change what it asks for, or add a machine that has it.",
    "unavailable": "It waits until such a machine takes work again. It is in nobody's way meanwhile.",
    "quota": "It waits until other work of this workspace ends, or staff raise the quota.",
    "preempting": "That room is kept for it.",
    "parallelism": "The array says how many of its workers run at once.",
}


def machine_sentence(code: str, numbers: Numbers) -> str:
    """Why machines refuse, for the table of machines: `only 2 of 8 GPUs free`."""
    return MACHINE_SENTENCES[code](numbers)


def _cores(milli: object) -> str:
    text = format_cores(int(str(milli)))
    return f"{text} core" if text == "1" else f"{text} cores"


def _memory(size: object) -> str:
    return format_memory(int(str(size)))


def _gpus(count: object) -> str:
    return counted(int(str(count)), "GPU")


def _machines(count: object) -> str:
    return counted(int(str(count)), "machine")


def _any_of(wanted: object) -> str:
    assert isinstance(wanted, list)
    return " or ".join(wanted)


def _all_of(wanted: object) -> str:
    assert isinstance(wanted, list)
    return " and ".join(wanted)


def _are(numbers: Numbers, state: str) -> str:
    """`the only machine that could hold it is cordoned`, `none of the 3 machines that could hold it takes work: 2
    draining, 1 not ready`."""
    count = int(str(numbers["machines"]))
    also = [(int(str(numbers[f"also_{code}"])), words) for code, words in CLOSED.items() if f"also_{code}" in numbers]
    if also:
        total = count + sum(other for other, _ in also)
        kinds = ", ".join(f"{other} {words}" for other, words in [*also, (count, state)])
        return f"none of the {total} machines that could hold it takes work: {kinds}"
    if count == 1:
        return f"the only machine that could hold it is {state}"
    return f"the {count} machines that could hold it are {state}"


CLOSED = {"not_ready": "not ready", "cordoned": "cordoned", "draining": "draining"}


def _because(numbers: Numbers) -> str:
    """`: a fan rattles`; what people wrote when they took machines out of service."""
    reasons = numbers.get("reasons")
    return f": {'; '.join(reasons)}" if isinstance(reasons, list) and reasons else ""


def _never(wanted: Callable[[Numbers], str], most: Callable[[Numbers], str] | None = None) -> Callable[[Numbers], str]:
    """`No machine fits: no machine has 9 GPUs; the most is 8`."""

    def words(numbers: Numbers) -> str:
        if numbers.get("machines") == 0:
            return "No machine fits: the cluster has no machines"
        text = f"No machine fits: no machine {wanted(numbers)}"
        return text if most is None else f"{text}; the most is {most(numbers)}"

    return words


def _amounts(numbers: Numbers) -> str:
    """What one worker waits for: `8 GPUs, 64 cores and 512 GiB`."""
    parts = [_gpus(numbers["gpus"])] if numbers["gpus"] else []
    if "node_fraction" in numbers:
        parts.append(f"{float(str(numbers['node_fraction'])):.0%} of a machine")
    else:
        parts += [_cores(numbers["cpu_milli"]), _memory(numbers["memory_bytes"])]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _next(numbers: Numbers) -> str:
    if "starts_by" not in numbers:
        return f"Next to run: waits for {_on_one(numbers)}{_away(numbers)}"
    at = datetime.fromtimestamp(int(str(numbers["starts_by"])), UTC)
    are = "is" if "node_fraction" in numbers and not numbers["gpus"] else "are"
    return f"Next to run: {_on_one(numbers)} {are} free by {at:%Y-%m-%d %H:%M} UTC at the latest{_away(numbers)}"


def _on_one(numbers: Numbers) -> str:
    """`8 GPUs, 64 cores and 512 GiB on one machine`, `1 GPU and 50% of a machine`."""
    return _amounts(numbers) if "node_fraction" in numbers else f"{_amounts(numbers)} on one machine"


def _away(numbers: Numbers) -> str:
    """`; 1 machine with room is not connected`."""
    if "away" not in numbers:
        return ""
    count = int(str(numbers["away"]))
    return f"; {_machines(count)} with room {'is' if count == 1 else 'are'} not connected"


def _queued(numbers: Numbers) -> str:
    ahead = numbers.get("ahead")
    runs = "other runs" if ahead is None else counted(int(str(ahead)), "run")
    return f"Queued behind {runs}: waits for {_on_one(numbers)}"


def _gang(numbers: Numbers) -> str:
    who = "the next" if "differ" in numbers else "each"
    return (
        f"Gang cannot be placed whole: {numbers['fit']} of {numbers['workers']} workers fit now, "
        f"{who} needs {_amounts(numbers)}{_away(numbers)}"
    )


def _gang_of(where: str) -> Callable[[Numbers], str]:
    """`No machine fits: 5 workers start together; all machines could hold 4 at once, each needs 8 GPUs, …`"""

    def words(numbers: Numbers) -> str:
        who = "the next" if "differ" in numbers else "each"
        return (
            f"No machine fits: {numbers['workers']} workers start together; {where} could hold {numbers['most']} "
            f"at once, {who} needs {_amounts(numbers)}"
        )

    return words


QUOTA_WORDS = "Waits for namespace quota: "


def _quota(words: Callable[[object], str], unit: str) -> Callable[[Numbers], str]:
    """`Waits for namespace quota: 8 of 8 GPUs in use`; where the ask alone is too large, it says so."""

    def of(numbers: Numbers) -> str:
        wanted, limit, used = int(str(numbers["wanted"])), int(str(numbers["limit"])), int(str(numbers["used"]))
        if wanted > limit:
            return f"{QUOTA_WORDS}{words(wanted)}{unit} asked, the quota is {words(limit)}"
        in_use = f"{QUOTA_WORDS}{words(used)} of {words(limit)}{unit} in use"
        return in_use if used >= limit else f"{in_use}, {words(wanted)} more asked"

    return of


def _plain(value: object) -> str:
    return str(value)


SENTENCES: dict[str, Callable[[Numbers], str]] = {
    "plan_uneven": lambda n: (
        f"Cannot plan workers: {_gpus(n['gpus'])} do not split evenly over {n['count']} {n['over']}"
    ),
    "plan_too_few": lambda n: (
        f"Cannot plan workers: {_gpus(n['gpus'])} asked, the machines that qualify have {n['total']} in all"
    ),
    "plan_split": lambda n: (
        f"Cannot plan workers: {_gpus(n['gpus'])} do not split evenly over the {_gpus(n['total'])} "
        f"of {_machines(n['machines'])}, at most {n['most']} on one"
    ),
    "never_name": _never(lambda n: f"is named {_any_of(n['wanted'])}"),
    "never_pool": _never(lambda n: f"is in pool {_any_of(n['wanted'])}"),
    "never_namespace_pool": _never(lambda n: f"is in the workspace's pool {_any_of(n['wanted'])}"),
    "never_labels": _never(lambda n: f"is labelled {_all_of(n['wanted'])}"),
    "never_containers": _never(lambda n: f"runs containers, which {_all_of(n['wanted'])} need"),
    "never_gpu_model": _never(lambda n: f"has a GPU of model {_any_of(n['wanted'])}"),
    "never_gpu_memory": _never(lambda n: f"has a GPU with {_memory(n['wanted'])}", lambda n: _memory(n["most"])),
    "never_gpus": _never(lambda n: f"has {_gpus(n['wanted'])}", lambda n: str(n["most"])),
    "never_cpu": _never(lambda n: f"has {_cores(n['wanted'])}", lambda n: _cores(n["most"])),
    "never_memory": _never(lambda n: f"has {_memory(n['wanted'])} of memory", lambda n: _memory(n["most"])),
    "never_machines": lambda n: (
        f"No machine fits: {_machines(n['wanted'])} asked, one worker on each; {n['most']} could hold one"
    ),
    "never_gang": _gang_of("all machines together"),
    "unavailable_machines": lambda n: (
        f"No machine fits: {_machines(n['wanted'])} asked, one worker on each; {n['most']} that take work now could "
        "hold one"
    ),
    "unavailable_gang": _gang_of("the machines that take work now"),
    "unavailable_not_ready": lambda n: f"No machine fits: {_are(n, 'not ready')}",
    "unavailable_cordoned": lambda n: f"No machine fits: {_are(n, 'cordoned')}{_because(n)}",
    "unavailable_draining": lambda n: f"No machine fits: {_are(n, 'draining')}{_because(n)}",
    "unavailable_gpu_health": lambda n: (
        f"No machine fits: no machine has {n['wanted']} healthy GPUs now; the most is {n['most']}"
    ),
    "quota_runs": _quota(_plain, " runs"),
    "quota_gpus": _quota(_plain, " GPUs"),
    "quota_cpu": _quota(lambda milli: format_cores(int(str(milli))), " cores"),
    "quota_memory": _quota(_memory, " memory"),
    "gang": _gang,
    "next": _next,
    "queued": _queued,
    "preempting": lambda n: "Next to run: what runs in its place is stopping",
    "parallelism": lambda n: f"Next to run when one of its workers ends: {n['limit']} run at once",
}

MACHINE_SENTENCES: dict[str, Callable[[Numbers], str]] = {
    "name": lambda n: f"not named {_any_of(n['wanted'])}",
    "pool": lambda n: f"not in pool {_any_of(n['wanted'])}",
    "namespace_pool": lambda n: f"not in the workspace's pool {_any_of(n['wanted'])}",
    "labels": lambda n: f"not labelled {_all_of(n['wanted'])}",
    "containers": lambda n: f"runs host processes: {_all_of(n['wanted'])} need a container",
    "gpu_model": lambda n: f"no GPU of model {_any_of(n['wanted'])}",
    "gpu_memory": lambda n: f"no GPU with {_memory(n['wanted'])}",
    "gpus": lambda n: f"{_gpus(n['wanted'])} wanted, at most {n['most']} there",
    "cpu": lambda n: f"{_cores(n['wanted'])} wanted, at most {_cores(n['most'])} there",
    "memory": lambda n: f"{_memory(n['wanted'])} wanted, at most {_memory(n['most'])} there",
    "not_ready": lambda n: "not ready",
    "not_connected": lambda n: "not connected",
    "cordoned": lambda n: f"cordoned{_because(n)}",
    "draining": lambda n: f"draining{_because(n)}",
    "gpu_health": lambda n: f"{_gpus(n['wanted'])} wanted, at most {n['most']} healthy",
    "free_gpus": lambda n: f"{_gpus(n['wanted'])} wanted, at most {n['most']} free",
    "free_cpu": lambda n: f"{_cores(n['wanted'])} wanted, at most {_cores(n['most'])} free",
    "free_memory": lambda n: f"{_memory(n['wanted'])} wanted, at most {_memory(n['most'])} free",
}
