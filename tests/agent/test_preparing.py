"""Preparing an attempt: step by step, waiting for as long as it takes, given up at a stop."""

import asyncio
from pathlib import Path

import pytest

from machines.agent.data_board import DataBoard, in_one_frame
from machines.agent.launch import Launch
from machines.agent.preparing import Preparation, Waits
from machines.agent.runtimes.base import AttemptFolder, CannotStart, Mount, Prepared, Progress, RegistryLogin
from machines.agent.supervisor import Supervisor
from machines.orders import DataKind, Order
from machines.protocol import (
    DATA_STATES_MAX,
    MAX_BYTES_FROM_AGENT,
    Assignments,
    DataState,
    DataStates,
    EndReason,
    Phase,
    Welcome,
    encode,
)
from tests.agent.agents import eventually, order

FOLDER = AttemptFolder(Path("/nowhere"))


def gives(prepared: Prepared, waits_for: str = ""):
    async def step(order: Order, folder: AttemptFolder, waits: Waits) -> Prepared:
        if waits_for:
            waits(waits_for)
        return prepared

    return step


async def forever(order: Order, folder: AttemptFolder, waits: Waits) -> Prepared:
    waits("waiting for the end of time")
    await asyncio.Event().wait()
    raise AssertionError


async def test_what_the_steps_give_comes_together():
    data, model = Mount(Path("/data"), "/data", read_only=True), Mount(Path("/m"), "/model", read_only=True)
    steps = [
        gives(Prepared(env={"A": "1"}, mounts=[data], login=RegistryLogin("registry", "user", "word"))),
        gives(Prepared(env={"B": "2"}, mounts=[model], served_model=model, workspace=Path("/work"))),
    ]
    prepared = await Preparation(steps).prepare(order("true"), FOLDER, lambda sentence: None)
    assert prepared == Prepared(
        env={"A": "1", "B": "2"},
        mounts=[data, model],
        login=RegistryLogin("registry", "user", "word"),
        served_model=model,
        workspace=Path("/work"),
    )


async def test_it_says_what_it_waits_for_and_that_it_waits_no_longer():
    told: list[str] = []
    steps = [gives(Prepared(), "waiting for this"), gives(Prepared(), "waiting for that")]
    await Preparation(steps).prepare(order("true"), FOLDER, told.append)
    assert told == ["waiting for this", "", "waiting for that", ""]


async def test_a_stop_gives_up_what_waits_forever():
    launch, waiting = Launch(barrier=False), asyncio.Event()
    work = Preparation([forever]).prepare(order("true"), FOLDER, lambda sentence: waiting.set())
    preparing = asyncio.create_task(launch.prepare(work))
    await waiting.wait()
    launch.stop()
    with pytest.raises(CannotStart) as stopped:
        await preparing
    assert stopped.value.reason is EndReason.STOPPED


async def test_a_stop_that_comes_with_the_last_step_is_not_lost():
    launch = Launch(barrier=False)
    work = Preparation([gives(Prepared())]).prepare(order("true"), FOLDER, lambda sentence: launch.stop())
    with pytest.raises(CannotStart):
        await launch.prepare(work)


async def test_an_agent_that_leaves_gives_up_what_it_prepares():
    launch, waiting = Launch(barrier=False), asyncio.Event()
    work = Preparation([forever]).prepare(order("true"), FOLDER, lambda sentence: waiting.set())
    preparing = asyncio.create_task(launch.prepare(work))
    await waiting.wait()
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing


async def test_what_a_step_refuses_is_refused():
    async def refuses(order: Order, folder: AttemptFolder, waits: Waits) -> Prepared:
        raise CannotStart(EndReason.IMAGE_PULL, "no login in it")

    with pytest.raises(CannotStart, match="no login in it"):
        await Launch(barrier=True).prepare(Preparation([refuses]).prepare(order("true"), FOLDER, lambda sentence: None))


def test_a_waiting_sentence_is_reported_and_gone_with_the_next_phase():
    supervisor, item = Supervisor("c" * 32), order("true")
    supervisor.on_welcome(Welcome("c" * 32, "m", 5, 5, 1 << 30))
    supervisor.on_assignments(Assignments(1, [item]), 1)
    supervisor.on_waiting(item.attempt, "waiting for external secret hf-token")
    (frame,) = supervisor.take_reports(2)
    assert frame.items[0].waiting == "waiting for external secret hf-token"
    supervisor.on_waiting(item.attempt, "")
    assert supervisor.take_reports(2) == []
    supervisor.on_event(Progress(item.attempt, Phase.PULLING, 3), "", 3)
    (frame,) = supervisor.take_reports(3)
    assert frame.items[0].waiting == ""


async def test_the_board_tells_all_it_holds_and_not_again_within_a_second():
    told: list[DataStates] = []
    board = DataBoard(told.append)
    first, second = (DataState(DataKind.CREDENTIAL, uid * 32, "Synced") for uid in "ab")
    board.put(first)
    await eventually(lambda: told == [DataStates([first])])
    board.put(second)
    board.put(second)
    await asyncio.sleep(0.01)
    assert len(told) == 1
    board.keep_only(DataKind.CREDENTIAL, {"b" * 32})
    board.tell()
    assert told[1:] == [DataStates([second])]
    board.close()


def test_what_a_machine_holds_always_fits_into_one_frame():
    items = [DataState(DataKind.DRIVE, f"{number:032x}", "Failed", "€" * 500) for number in range(2000)]
    frame = in_one_frame(items)
    assert len(encode(frame)) <= MAX_BYTES_FROM_AGENT
    assert [item.uid for item in frame.items] == [item.uid for item in items[:DATA_STATES_MAX]]
    assert in_one_frame(items[:10]).items == items[:10]
