"""The console's plain words beside the API's reasons, and what to do about a failure. Pure.

The API's reason is kept to the letter beside each of these; nothing here is matched by anybody.
"""

from dataclasses import dataclass
from enum import StrEnum

from runs.state_machine import TIME_LIMIT_PREFIX, RunState, WorkerState


class Look(StrEnum):
    """Where to look for a cause, or what to do at once: links beside an advice, in this order of usefulness."""

    LOG = "log"
    METRICS = "metrics"  # around the failure
    STARTED = "started"  # how it was started: image, command, environment
    CREDENTIAL = "credential"  # of the registry
    MACHINE = "machine"
    HISTORY = "history"  # the run's
    MORE_MEMORY = "memory"  # run again with more of it
    MORE_TIME = "time"


@dataclass(frozen=True)
class Advice:
    """What a failure panel says. `title` names what happened in plain words, `text` what to do about it, `looks` where
    to look."""

    title: str
    text: str
    looks: tuple[Look, ...] = (Look.LOG,)


# Beginnings of reasons, in the order they are tried: the first that matches tells.
ADVICE: tuple[tuple[str, Advice], ...] = (
    (
        "OOMKilled",
        Advice(
            "It ran out of memory",
            "See the Memory chart. Raise memory_bytes (or per_gpu.memory_bytes), or lower the batch size.",
            (Look.LOG, Look.METRICS, Look.MORE_MEMORY),
        ),
    ),
    (
        "Exited with code 127",
        Advice("The command is not in the image", "Check the command and the image's PATH.", (Look.STARTED, Look.LOG)),
    ),
    (
        "Exited with code 126",
        Advice(
            "The command could not be run",
            "The file is there but may not be executed: check its permissions and its first line.",
            (Look.STARTED, Look.LOG),
        ),
    ),
    (
        "Exited with code 137",
        Advice(
            "It was killed",
            "It got SIGKILL, and not for exceeding its memory limit. Its log and its machine may tell more.",
            (Look.LOG, Look.METRICS, Look.MACHINE),
        ),
    ),
    (
        "Exited with code 143",
        Advice(
            "It was asked to end",
            "It received SIGTERM from inside its container or from the machine.",
            (Look.LOG, Look.MACHINE, Look.HISTORY),
        ),
    ),
    (
        "Exited with code",
        Advice("The program ended with an error", "The cause is in its log.", (Look.LOG, Look.METRICS)),
    ),
    (
        "Ended; its exit code",
        Advice(
            "Nobody saw how it ended",
            "Its machine could not observe the exit code, so it does not count as completed.",
            (Look.MACHINE, Look.LOG),
        ),
    ),
    (
        "Liveness probe failed",
        Advice(
            "It stopped answering its liveness probe",
            "Its log says what it was doing. If it was only busy, raise the probe's timeout or failure threshold.",
            (Look.LOG, Look.METRICS, Look.STARTED),
        ),
    ),
    (
        "Startup probe failed",
        Advice(
            "It did not get ready in time",
            "Its log says how far it came. If it needs longer, raise the startup probe's failure threshold or period.",
            (Look.LOG, Look.METRICS, Look.STARTED),
        ),
    ),
    (
        "A probe failed",
        Advice("A probe failed", "Its log says what it was doing.", (Look.LOG, Look.METRICS, Look.STARTED)),
    ),
    (
        "ErrImagePull: the registry has no such image",
        Advice("The image does not exist", "Check the image's name and tag.", (Look.STARTED, Look.CREDENTIAL)),
    ),
    (
        "ErrImagePull: the registry denies access",
        Advice(
            "The registry denies access to the image",
            "A private registry needs a registry credential; some registries also deny what does not exist.",
            (Look.CREDENTIAL, Look.STARTED),
        ),
    ),
    (
        "ErrImagePull: the registry cannot be reached",
        Advice(
            "The registry could not be reached",
            "It is the machine's network or the registry, not the run.",
            (Look.MACHINE, Look.HISTORY),
        ),
    ),
    (
        "ErrImagePull: the machine's disk is full",
        Advice(
            "The machine has no room for the image",
            "It is the machine, not the run: its disk is full.",
            (Look.MACHINE,),
        ),
    ),
    (
        "ErrImagePull",
        Advice(
            "The image could not be pulled",
            "Check the image's name and tag; a private registry needs a registry credential.",
            (Look.STARTED, Look.CREDENTIAL, Look.MACHINE),
        ),
    ),
    (
        "Image ",
        Advice(
            "The image is not on the machine",
            "The pull policy None never pulls: use IfNotPresent, or put the image on the machine.",
            (Look.STARTED, Look.MACHINE),
        ),
    ),
    (
        TIME_LIMIT_PREFIX,
        Advice(
            "It reached its time limit",
            "Raise the time limit, or write checkpoints and resume from them.",
            (Look.LOG, Look.METRICS, Look.MORE_TIME),
        ),
    ),
    (
        "Machine lost: it was removed",
        Advice(
            "Its machine was removed from the cluster",
            "It is the machine, not the run: somebody took it out of the cluster.",
            (Look.HISTORY,),
        ),
    ),
    (
        "Machine lost: its agent",
        Advice(
            "Its machine's agent moved",
            "It is the machine, not the run: its agent was started in another place, where this worker is not known.",
            (Look.MACHINE, Look.HISTORY),
        ),
    ),
    (
        "Machine lost",
        Advice(
            "Its machine was lost",
            "It is the machine, not the run: nothing was heard from it until its lease expired.",
            (Look.MACHINE, Look.HISTORY),
        ),
    ),
    (
        "Machine rebooted",
        Advice("Its machine rebooted", "It is the machine, not the run.", (Look.MACHINE, Look.HISTORY)),
    ),
    (
        "Its machine no longer knows",
        Advice(
            "Its machine lost track of it",
            "It is the machine, not the run: its record of the worker is gone.",
            (Look.MACHINE, Look.HISTORY),
        ),
    ),
    (
        "Retry budget exhausted",
        Advice(
            "It failed too often in a row",
            "The output below is of its last failure: the cause is there.",
            (Look.LOG, Look.HISTORY, Look.METRICS),
        ),
    ),
    (
        "Could not start",
        Advice(
            "It could not be started",
            "The message is the machine's own. Check the command, the user and the working directory.",
            (Look.STARTED, Look.MACHINE),
        ),
    ),
    (
        "Refused by the machine",
        Advice("The machine cannot run it", "The message says what its runtime lacks.", (Look.STARTED, Look.MACHINE)),
    ),
    (
        "Preempted by",
        Advice("Not a failure: it is queued again", "Work of higher priority needed its room.", (Look.HISTORY,)),
    ),
    (
        "The engine",
        Advice(
            "The engine beside it failed",
            "The end of its log is below: the model, the memory that both share, or the engine's settings.",
            (Look.LOG, Look.METRICS, Look.STARTED),
        ),
    ),
    (
        "Stopped by its machine",
        Advice(
            "Its machine stopped it",
            "It was stopped without the console asking: see the machine.",
            (Look.MACHINE, Look.HISTORY),
        ),
    ),
)

PLAIN_PENDING: tuple[tuple[str, str], ...] = (
    ("Run created", "Waiting for the scheduler to look at it"),
    ("Gang cannot be placed whole", "Waiting for room for all its workers at once"),
    ("Next to run", "Next in line: waiting for room"),
    ("Queued behind", "Waiting for its turn"),
    ("Waits for namespace quota", "Waiting for the workspace's quota"),
    ("Cannot plan workers", "Its GPUs cannot be split over the machines as asked"),
    ("No machine fits: the cluster has no machines", "The cluster has no machines"),
    ("No machine fits: the ", "The machines that could run it take no work now"),
    ("No machine fits: none of the ", "The machines that could run it take no work now"),
    ("No machine fits", "No machine can run it as asked"),
    ("Preempted by", "Queued again: more urgent work needed its room"),
    ("Console stopped", "Queued again: the console was stopped"),
    ("Machine lost", "Queued again: its machine was lost"),
    ("Machine rebooted", "Queued again: its machine rebooted"),
    ("Machine ", "Queued again: its machine is being emptied"),
    ("Restarting", "Waiting to be started again"),
)


def advice(reason: str) -> Advice | None:
    """For the reason of a worker that failed, or of its last failure."""
    return next((found for beginning, found in ADVICE if reason.startswith(beginning)), None)


def run_sentence(state: str, reason: str, failure: str = "") -> str:
    """A run in plain words. `reason`: the API's (`Run.status_reason`); `failure`: of the worker that failed first."""
    if state == RunState.PENDING:
        return _beginning(PLAIN_PENDING, reason) or "Waiting to be placed"
    if state == RunState.STARTING:
        return "Getting ready on its machines"
    if state == RunState.RUNNING:
        return "Running"
    if state == RunState.COMPLETED:
        return "All its workers completed"
    if state == RunState.CANCELLED:
        return "It was stopped before it completed"
    found = advice(failure)
    return found.title if found else "A worker failed"


PLAIN_WORKER: dict[str, str] = {
    WorkerState.PENDING: "Waiting for a machine",
    WorkerState.PREPARING: "Its machine is getting ready",
    WorkerState.PULLING: "Its machine is pulling the image",
    WorkerState.STARTING: "Its container is starting",
    WorkerState.RUNNING: "Running",
    WorkerState.COMPLETED: "Completed",
    WorkerState.CANCELLED: "Stopped",
}


def worker_sentence(state: str, reason: str, stopping: bool = False) -> str:
    """A worker in plain words. `stopping`: its stop was asked for and it has not ended yet."""
    if state == WorkerState.FAILED:
        found = advice(reason)
        return found.title if found else "Failed"
    if state == WorkerState.RESTARTING:
        found = advice(reason)
        return f"{found.title}: it starts again" if found else "It starts again"
    if stopping and state != WorkerState.CANCELLED:
        return "Stopping"
    if state == WorkerState.PENDING:
        return _beginning(PLAIN_PENDING[1:], reason) or PLAIN_WORKER[state]
    return PLAIN_WORKER[state]


def _beginning(table: tuple[tuple[str, str], ...], reason: str) -> str:
    return next((plain for beginning, plain in table if reason.startswith(beginning)), "")
