"""What tests are made of: tenants, machines, runs, what machines report; and the invariants that hold after anything.

Each builder makes a row that works, with unspoken values where a test does not care. Times are the caller's: T0 + n.
"""

import itertools
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from astraconsole.tenancy.models import Membership, Organisation, User, Workspace
from astraconsole.tenancy.permissions import Role
from astraconsole.tenancy.queries import Access
from machines.inbox import Entry
from machines.models import Assignment, Cluster, Gpu, Machine, MachineState, Namespace
from machines.protocol import EndReason, Phase, PhaseAge, Report
from runs.models import Attempt, Run, Transition, Worker
from runs.scheduling.types import Placement
from runs.services import placing, reports
from runs.services import submit as submitting
from runs.spec import parse_run
from runs.state_machine import ENDED, PLACED, WORKER_MOVES, FirstFailure, RunFacts, RunState, WorkerState, derive_run

GIB = 1024**3
T0 = datetime(2026, 10, 1, 1, 2, 11, 402117, tzinfo=UTC)
_numbers = itertools.count(1)


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def organisation(slug: str = "") -> Organisation:
    slug = slug or f"org-{next(_numbers)}"
    return Organisation.objects.create(slug=slug, name=slug)


def workspace(org: Organisation | None = None, slug: str = "vision") -> Workspace:
    return Workspace.objects.create(organisation=org or organisation(), slug=slug, name=slug)


def access(to: Workspace, role: Role = Role.EDITOR, username: str = "") -> Access:
    user = User.objects.create_user(username or f"user-{next(_numbers)}")
    Membership.objects.create(user=user, workspace=to, role=role)
    return Access(user, to, role)


def cluster(*used_by: Workspace, slug: str = "gpu-east", **namespace: Any) -> Cluster:
    """With a namespace of each workspace on it."""
    made = Cluster.objects.create(organisation=used_by[0].organisation, slug=slug)
    for user in used_by:
        Namespace.objects.create(workspace=user, cluster=made, **namespace)
    return made


def machine(
    of: Cluster, name: str = "", cpu: float = 8, memory: int = 32 * GIB, gpus: int = 0, **columns: Any
) -> Machine:
    """Ready and connected. `cpu` in cores, `memory` in bytes."""
    number = next(_numbers)
    name = name or f"gpu-{number:02}"
    defaults = {
        "hostname": f"{name}.example",
        "state": MachineState.READY,
        "connection": "socket-1",
        "runtime": "process",
        "last_seen_at": T0,
    }
    made = Machine.objects.create(
        cluster=of,
        name=name,
        cpu_milli=round(cpu * 1000),
        memory_bytes=memory,
        token_digest=uuid.uuid4().hex,
        **{**defaults, **columns},
    )
    for index in range(gpus):
        Gpu.objects.create(
            machine=made,
            index=index,
            uuid=f"GPU-{number}-{index}",
            model="NVIDIA H100 80GB HBM3",
            memory_bytes=80 * GIB,
        )
    return made


def body(
    name: str = "run", cpu: float = 1, memory: int = GIB, gpus: int = 0, template: Any = None, **spec: Any
) -> dict[str, Any]:
    """The JSON body of a run; `spec` are its further fields, `template` those of its task template."""
    resources: dict[str, Any] = {"cpu_cores": cpu, "memory_bytes": memory}
    if gpus:
        resources = {"per_gpu": resources, "gpu_requests": {"count": gpus}}
    filled = {"image": "busybox", "requested_resources": resources, **(template or {})}
    return {"metadata": {"name": name}, "spec": {"task_template": filled, **spec}}


def submit(by: Access, to: Cluster, name: str = "", now: datetime = T0, **asked: Any) -> Run:
    """`asked` as for `body`."""
    name = name or f"run-{next(_numbers)}"
    return submitting.submit_run(by, to.slug, parse_run(body(name, **asked)), now)


def workers(run: Run) -> list[Worker]:
    return list(run.workers.order_by("rank"))


def place(worker: Worker, on: Machine, gpus: Sequence[int] = (), now: datetime = T0) -> Attempt | None:
    """As the scheduler would; None where it was refused."""
    placement = Placement(
        worker_id=worker.id,
        machine_id=on.id,
        gpu_indexes=tuple(gpus),
        cpu_milli=worker.cpu_milli,
        memory_bytes=worker.memory_bytes,
        run_id=worker.run_id,
        namespace_id=worker.namespace_id,
    )
    placed = placing.place_workers(on.cluster_id, [placement], now)
    return newest_attempt(worker) if placed else None


def newest_attempt(worker: Worker) -> Attempt:
    return Attempt.objects.filter(worker=worker).latest("number")


def told(attempt: Attempt, *phases: tuple[Phase, float], seq: int | None = None, **fields: Any) -> Report:
    """A report: phases with how many seconds ago they began. `seq`: one more than the newest applied."""
    return Report(
        attempt=attempt.uid.hex,
        seq=attempt.report_seq + 1 if seq is None else seq,
        phases=[PhaseAge(phase, age) for phase, age in phases],
        **fields,
    )


def entry(on: Machine, at: datetime, said: Report | None = None, hello: list[str] | None = None) -> Entry:
    return Entry(
        id=f"0-{next(_numbers)}", machine_id=on.id, machine_uid=on.uid, received_at=at, report=said, hello=hello
    )


def report(attempt: Attempt, *phases: tuple[Phase, float], at: datetime = T0, **fields: Any) -> list[Any]:
    """Apply one report of an attempt; what is to be acknowledged."""
    attempt.refresh_from_db()
    return reports.apply([entry(attempt.machine, at, told(attempt, *phases, **fields))], at)


def report_end(
    attempt: Attempt,
    exit_code: int | None = 0,
    reason: EndReason = EndReason.EXITED,
    ran: float = 1,
    at: datetime = T0,
    **fields: Any,
) -> list[Any]:
    """It ran for `ran` seconds and ended just now."""
    phases = ((Phase.PREPARING, ran + 1), (Phase.STARTING, ran + 1), (Phase.RUNNING, ran), (Phase.ENDED, 0.0))
    return report(attempt, *phases, at=at, exit_code=exit_code, end_reason=reason, **fields)


def run_on(worker: Worker, on: Machine, now: datetime = T0, gpus: Sequence[int] = ()) -> Attempt:
    """Placed and Running."""
    attempt = place(worker, on, gpus, now)
    assert attempt is not None
    report(attempt, (Phase.PREPARING, 2.0), (Phase.STARTING, 1.0), (Phase.RUNNING, 0.0), at=now)
    attempt.refresh_from_db()
    return attempt


def state_of(worker: Worker) -> tuple[str, str]:
    """(state, reason), as stored; its run is read again too."""
    worker.refresh_from_db()
    worker.run.refresh_from_db()
    return worker.state, worker.reason


def moves_of(owner: Run | Worker) -> list[tuple[str, str]]:
    """(state, reason) of its history."""
    found = Transition.objects.filter(run=owner, worker=None) if isinstance(owner, Run) else owner.transitions.all()
    return list(found.order_by("id").values_list("state", "reason"))


# ---- invariants ------------------------------------------------------------------------------------------------------


def check_invariants() -> None:
    """What holds after anything whatsoever."""
    everyone = list(Worker.objects.order_by("id"))
    attempts = list(Attempt.objects.select_related("machine").order_by("id"))
    _check_attempts(everyone, attempts)
    _check_room(attempt for attempt in attempts if attempt.released_at is None)
    for run in Run.objects.all():
        _check_run(run, [worker for worker in everyone if worker.run_id == run.id], attempts)
    for worker in everyone:
        _check_history(worker, list(worker.transitions.order_by("id")))


def _check_attempts(everyone: Iterable[Worker], attempts: list[Attempt]) -> None:
    wanted: dict[int, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        if attempt.released_at is None and attempt.superseded_at is None:
            wanted[attempt.worker_id].append(attempt)
    ordered = set(Assignment.objects.filter(order__isnull=False).values_list("attempt", flat=True))
    for worker in everyone:
        live = wanted[worker.id]
        assert len(live) <= 1, f"{worker} has two live wanted attempts"
        assert (worker.state in PLACED) == bool(live), f"{worker} is {worker.state} with {len(live)} attempts"
        if live:
            assert live[0].number == worker.attempt_number
            assert (live[0].uid in ordered) == (worker.stop_requested_at is None), f"{worker}: its order is wrong"
        assert worker.state != WorkerState.COMPLETED or worker.exit_code == 0
        assert (worker.restart_at is not None) == (worker.state == WorkerState.RESTARTING)
    assert ordered <= {attempt.uid for live in wanted.values() for attempt in live}, "an unwanted attempt is ordered"


def _check_room(live: Iterable[Attempt]) -> None:
    held: dict[Machine, list[Attempt]] = defaultdict(list)
    for attempt in live:
        held[attempt.machine].append(attempt)
    for owner, attempts in held.items():
        assert sum(attempt.cpu_milli for attempt in attempts) <= owner.cpu_milli
        assert sum(attempt.memory_bytes for attempt in attempts) <= owner.memory_bytes
        gpus = Counter(index for attempt in attempts for index in attempt.gpu_indexes)
        assert all(count == 1 for count in gpus.values()), f"{owner} has a GPU held twice"


def _check_run(run: Run, its: list[Worker], attempts: list[Attempt]) -> None:
    failed = sorted(
        (worker for worker in its if worker.state == WorkerState.FAILED),
        key=lambda worker: (worker.last_failure["failed_at"], worker.id),
    )
    failure = None
    if failed:
        on = [a.machine.name for a in attempts if a.worker_id == failed[0].id and a.number == failed[0].attempt_number]
        failure = FirstFailure(failed[0].name, on[0] if on else "", failed[0].reason)
    facts = RunFacts(
        counts=Counter(WorkerState(worker.state) for worker in its),
        gang=run.gang,
        together=run.on_failure != "RestartTask",
        restarting=(run.restarting or {}).get("cause", ""),
        stop_requested=run.stop_requested_at is not None,
        failure=failure,
        waiting_reason=run.reason,
    )
    derived = derive_run(facts)
    assert run.state == derived.state, f"{run} is {run.state}, its workers say {derived.state}"
    if run.state != RunState.PENDING:
        assert run.reason == derived.reason
    assert (run.ended_at is not None) == all(worker.state in ENDED for worker in its) or not its
    if run.on_failure == "RestartJob":
        assert run.restarts >= max((worker.restarts for worker in its), default=0)
    else:
        assert run.restarts == sum(worker.restarts for worker in its)
    if run.restarting is not None:
        assert not any(worker.state in (WorkerState.PENDING, WorkerState.COMPLETED) for worker in its)
        assert all(worker.stop_requested_at is not None for worker in its if worker.state in PLACED)
    history = list(Transition.objects.filter(run=run, worker=None).order_by("id"))
    assert history[-1].state == run.state
    assert [move.at for move in history] == sorted(move.at for move in history)


def _check_history(worker: Worker, history: list[Transition]) -> None:
    assert history[-1].state == worker.state
    assert [move.at for move in history] == sorted(move.at for move in history)
    for before, move in itertools.pairwise(history):
        if before.state != move.state:
            assert WorkerState(move.state) in WORKER_MOVES[WorkerState(before.state)]
