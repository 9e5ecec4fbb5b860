"""Gangs of different workers that only a cleverer order than the largest first can place."""

from collections.abc import Sequence
from itertools import product

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from runs.scheduling.candidates import Candidates
from runs.scheduling.ledger import Ledger
from runs.scheduling.packing import LOOKS_PER_SEARCH, Looks, pack
from runs.scheduling.places import Places
from runs.scheduling.planner import make_plan, rehearse
from runs.scheduling.types import (
    Ask,
    Constraints,
    GpuView,
    Hold,
    MachineView,
    NamespaceView,
    Snapshot,
    WaitingRun,
    WaitingWorker,
)
from tests.scheduling.harness import GIB, Case, cluster

A100 = Constraints(gpu_models=("A100",))


def gang(case: Case, *asks: Ask, **facts: object) -> Case:
    case.run("a", gang=True, **facts)
    workers = tuple(WaitingWorker(1000 + rank, ask) for rank, ask in enumerate(asks))
    case.worker_names |= {worker.id: f"a{rank}" for rank, worker in enumerate(workers)}
    case.runs["a"] = msgspec.structs.replace(case.runs["a"], workers=workers)
    return case


def choosy() -> Case:
    """The four GPUs fit best on the machine that the other two alone may use."""
    return cluster().machine(gpus=4, model="A100").machine(gpus=8, model="H100")


ANY_FOUR, TWO_A100 = Ask(4, 1000, GIB), Ask(2, 1000, GIB, constraints=A100)


def test_a_worker_that_may_go_anywhere_leaves_the_only_machine_that_another_may_use() -> None:
    case = gang(choosy(), ANY_FOUR, TWO_A100).expect(a0="m1", a1="m0")
    (rehearsed,) = rehearse(case.snapshot(), 1000.0, [case.runs["a"]])
    assert (len(rehearsed.placements), rehearsed.refusal) == (2, None)


def test_workers_that_fill_machines_only_in_one_way_are_placed_in_it() -> None:
    case = cluster().machine(cores=10, memory=10).machine(cores=10, memory=10)
    sizes = ((6, 4), (5, 5), (5, 5), (4, 6))
    gang(case, *(Ask(0, cores * 1000, memory * GIB) for cores, memory in sizes)).expect(
        a0="m0", a1="m1", a2="m1", a3="m0"
    )


def test_room_that_only_a_cleverer_order_uses_is_reserved_too() -> None:
    case = choosy().holding("m1", gpus=8, ends_by=1500)
    gang(case, ANY_FOUR, TWO_A100).run("long", gpus=3).expect()
    reservation = case.plan().reservation
    assert reservation is not None
    assert (reservation.run_id, reservation.starts_by, reservation.machine_ids) == (1, 1500, (100, 101))


def test_of_kinds_that_are_equally_hard_to_place_the_one_named_first_is_placed_first() -> None:
    places = Places(Ledger([MachineView(number, f"m{number}", 10, 10) for number in range(2)], ()))
    names = (("m0", "m1"), ("m1", "m0"))
    kinds = [Candidates(places, Ask(0, 1, 1, constraints=Constraints(names=each))) for each in names]
    for workers in (kinds, kinds[::-1]):
        assert pack(workers, Looks()) == [(0, 0), (1, 0)]


def test_a_search_without_end_is_given_up() -> None:
    inventory = tuple(MachineView(number, f"m{number}", 10_000 + number, 10**6) for number in range(60))
    places = Places(Ledger(inventory, ()))
    asks = [Ask(0, 5_100 + number, 1) for number in range(61)]
    looks = Looks(LOOKS_PER_SEARCH + 1)
    assert pack([Candidates(places, ask) for ask in asks], looks) is None
    assert looks.left < LOOKS_PER_SEARCH / 10
    assert pack([Candidates(places, ask) for ask in asks], looks) is None
    assert pack([Candidates(places, ask) for ask in asks[:2]], Looks(0)) is None


small_asks = st.builds(
    lambda gpus, amounts, constraints: Ask(gpus, *amounts, constraints=constraints),
    gpus=st.integers(0, 3),
    amounts=st.tuples(st.integers(0, 4), st.integers(0, 4)) | st.just((0, 0, 0.5)),
    constraints=st.sampled_from((Constraints(), Constraints(), A100, Constraints(names=("m0", "m1")))),
)


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    inventory = []
    for number in range(draw(st.integers(1, 3))):
        model = draw(st.sampled_from(("A100", "H100")))
        gpus = tuple(GpuView(index, model, 80) for index in range(draw(st.integers(0, 4))))
        size = draw(st.integers(2, 6)), draw(st.integers(2, 6))
        inventory.append(MachineView(number, f"m{number}", *size, gpus))
    held = [
        Hold(99, 1, machine.id, 1, 1, (0,) if machine.gpus else (), ends_by=9e9)
        for machine in inventory if draw(st.booleans())
    ]  # fmt: skip
    kinds = draw(st.lists(small_asks, min_size=2, max_size=3, unique=True))
    chosen = [*kinds, *draw(st.lists(st.sampled_from(kinds), max_size=2))]
    workers = tuple(WaitingWorker(rank, ask) for rank, ask in enumerate(chosen))
    run = WaitingRun(1, 1, 0.0, workers, gang=True)
    return Snapshot(tuple(inventory), tuple(held), (NamespaceView(1),), (run,))


def fits(world: Snapshot, holds: Sequence[Hold]) -> bool:
    """Every way, tried."""
    machines = world.machines
    asks = [worker.ask for worker in world.waiting[0].workers]
    for rows in product(range(len(machines)), repeat=len(asks)):
        left = {m.id: [len(m.gpus), m.cpu_milli, m.memory_bytes] for m in machines}
        for hold in holds:
            for place, amount in enumerate((len(hold.gpu_indexes), hold.cpu_milli, hold.memory_bytes)):
                left[hold.machine_id][place] -= amount
        for ask, row in zip(asks, rows, strict=True):
            machine, part = machines[row], ask.node_fraction
            amounts = (
                ask.gpus,
                int(machine.cpu_milli * part) if part else ask.cpu_milli,
                int(machine.memory_bytes * part) if part else ask.memory_bytes,
            )
            for place, amount in enumerate(amounts):
                left[machine.id][place] -= amount
            wrong_name = ask.constraints.names and machine.name not in ask.constraints.names
            wrong_model = ask.gpus and ask.constraints.gpu_models and machine.gpus and machine.gpus[0].model != "A100"
            if wrong_name or wrong_model:
                left[machine.id][0] = -1
        if all(amount >= 0 for amounts in left.values() for amount in amounts):
            return True
    return False


@given(worlds())
@settings(max_examples=400)
def test_a_gang_starts_if_there_is_any_way_and_is_told_never_only_if_there_is_none(world: Snapshot) -> None:
    plan = make_plan(world, 1000.0)
    assert (len(plan.placements) == len(world.waiting[0].workers)) == fits(world, world.holds)
    if not plan.placements:
        assert plan.refusals[1].code.startswith("never_") == (not fits(world, ()))
