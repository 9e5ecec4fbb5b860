"""When probes are due and what their answers mean; and how each runtime carries them out."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machines.agent.effects import Ask, Stop
from machines.agent.http_check import http_failure
from machines.agent.keeper_client import KeeperClient
from machines.agent.probes import ProbeKind, Prober, exit_failure
from machines.agent.runtimes.base import AttemptFolder, CannotProbe, Exited, Progress, RuntimeEvent
from machines.agent.runtimes.process import ProcessRuntime
from machines.agent.supervisor import Supervisor
from machines.orders import ExecCheck, HttpCheck, Order, Probe, Probes
from machines.protocol import Assignments, EndReason, Phase, Report, Welcome
from tests.agent.agents import Agent, environment, eventually, order, pids, script
from tests.agent.fake_console import FakeConsole

TRUE = ExecCheck(["true"])
STARTUP, READINESS, LIVENESS = ProbeKind.STARTUP, ProbeKind.READINESS, ProbeKind.LIVENESS


def probe(period: float = 10, failures: int = 3, successes: int = 1, delay: float = 0, **more: object) -> Probe:
    return Probe(
        check=TRUE,
        initial_delay_seconds=delay,
        period_seconds=period,
        failure_threshold=failures,
        success_threshold=successes,
        **more,  # type: ignore[arg-type]
    )


def due(prober: Prober, now: float) -> list[ProbeKind]:
    return [kind for kind, _ in prober.due(now)]


# ---- the rules ----


def test_a_probe_is_asked_after_its_delay_and_then_every_period_but_never_twice_at_once() -> None:
    prober = Prober(Probes(liveness=probe(period=10, delay=5)), running_at=100)
    assert due(prober, 104.9) == []
    assert due(prober, 105) == [LIVENESS]
    assert due(prober, 200) == []
    prober.answered(LIVENESS, "")
    assert due(prober, 200) == [LIVENESS]
    prober.answered(LIVENESS, "")
    assert due(prober, 209.9) == []
    assert due(prober, 210) == [LIVENESS]


def test_a_startup_probe_holds_off_the_others_until_it_succeeds_once() -> None:
    prober = Prober(Probes(startup=probe(), readiness=probe(), liveness=probe()), 0)
    assert due(prober, 0) == [STARTUP]
    assert prober.not_ready == "its startup probe has not succeeded yet"
    prober.answered(STARTUP, "not there")
    assert due(prober, 10) == [STARTUP]
    prober.answered(STARTUP, "")
    assert due(prober, 20) == [READINESS, LIVENESS]
    assert prober.not_ready == "its readiness probe has not succeeded yet"
    prober.answered(READINESS, "")
    assert prober.not_ready == ""


@pytest.mark.parametrize("kind", [STARTUP, LIVENESS])
def test_so_many_failures_in_a_row_end_the_attempt(kind: ProbeKind) -> None:
    prober = Prober(Probes(**{kind.lower(): probe(failures=2)}), 0)
    for answer in ("a", "b") if kind is STARTUP else ("a", "", "b", "c"):
        assert prober.failure == ""
        prober.answered(kind, answer)
    assert prober.failure == f"{kind} probe failed: {'b' if kind is STARTUP else 'c'}"
    assert due(prober, 1000) == []


def test_readiness_comes_and_goes_and_ends_nothing() -> None:
    prober = Prober(Probes(readiness=probe(failures=2, successes=2)), 0)
    said = []
    for answer in ("", "", "HTTP 503", "HTTP 500", "HTTP 404", "", "HTTP 503", "", ""):
        prober.answered(READINESS, answer)
        said.append(prober.not_ready)
    never, failed = "its readiness probe has not succeeded yet", "readiness probe failed: HTTP 500"
    assert said == [never, "", "", failed, failed, failed, failed, failed, ""]
    assert prober.failure == ""


def test_what_could_not_be_asked_says_nothing() -> None:
    prober = Prober(Probes(liveness=probe(failures=1)), 0)
    assert due(prober, 0) == [LIVENESS]
    prober.answered(LIVENESS, None)
    assert prober.failure == ""
    assert due(prober, 10) == [LIVENESS]


def test_another_agent_goes_on_from_what_the_last_one_found() -> None:
    asked = Probes(startup=probe(), readiness=probe())
    again = Prober(asked, 0, started=True, not_ready="readiness probe failed: HTTP 500")
    assert due(again, 0) == [READINESS]
    assert again.not_ready == "readiness probe failed: HTTP 500"
    assert Prober(asked, 0, started=True).not_ready == ""
    assert due(Prober(asked, 0), 0) == [STARTUP]


@given(st.lists(st.sampled_from([None, "", "no"])), st.integers(1, 4), st.integers(1, 4))
def test_a_row_of_answers_decides_alone(answers: list[str | None], failures: int, successes: int) -> None:
    """Readiness is what the newest row that reached its threshold said."""
    prober = Prober(Probes(readiness=probe(failures=failures, successes=successes)), 0)
    ready, row = False, 0
    for answer in answers:
        prober.answered(READINESS, answer)
        if answer is not None:
            row = (row + 1 if row > 0 else 1) if not answer else (row - 1 if row < 0 else -1)
            ready = True if row >= successes else False if row <= -failures else ready
        assert (prober.not_ready == "") == ready


def test_a_failed_commands_last_line_is_the_reason() -> None:
    assert exit_failure(0, b"whatever") == ""
    assert exit_failure(1, b"one\n\n  two \n\n") == "exited with code 1: two"
    assert exit_failure(2, b"") == "exited with code 2"
    assert exit_failure(None, b"\xff\0") == "was killed: ��"


# ---- the supervisor ----


def serving(probes: Probes) -> tuple[Supervisor, Order]:
    supervisor, item = Supervisor("c" * 32), order("serve", probes=probes, stop_grace_seconds=7)
    supervisor.on_welcome(Welcome("c" * 32, "m", 5, 5, 1 << 30))
    supervisor.on_assignments(Assignments(1, [item]), 1)
    supervisor.on_event(Progress(item.attempt, Phase.RUNNING, 10), "", 10)
    return supervisor, item


def report_of(supervisor: Supervisor, item: Order, now: float) -> Report | None:
    reports = [report for frame in supervisor.take_reports(now) for report in frame.items]
    return next((report for report in reports if report.attempt == item.attempt), None)


def test_a_worker_runs_at_once_and_says_why_it_is_not_ready() -> None:
    supervisor, item = serving(Probes(readiness=probe(delay=1)))
    report = report_of(supervisor, item, 10)
    assert report is not None
    assert report.phases[-1].phase is Phase.RUNNING
    assert report.not_ready == "its readiness probe has not succeeded yet"
    assert supervisor.on_tick(10.9) == []
    (asked,) = supervisor.on_tick(11)
    assert isinstance(asked, Ask)
    supervisor.on_answer(item.attempt, READINESS, "", 11.1)
    report = report_of(supervisor, item, 12)
    assert report is not None
    assert report.not_ready == ""
    supervisor.on_answer(item.attempt, READINESS, "", 21)
    assert report_of(supervisor, item, 22) is None


def test_a_liveness_failure_stops_the_attempt_with_its_grace_and_is_its_reason() -> None:
    supervisor, item = serving(Probes(liveness=probe(failures=1)))
    supervisor.on_disconnected()
    supervisor.on_tick(10)
    assert Stop(item.attempt, 7) in supervisor.on_answer(item.attempt, LIVENESS, "HTTP 500", 11)
    assert supervisor.on_answer(item.attempt, LIVENESS, "HTTP 500", 12) == []
    assert not any(isinstance(effect, Ask) for effect in supervisor.on_tick(100))
    supervisor.on_event(Exited(item.attempt, 18, 137, oom_killed=True), "tail", 18)
    supervisor.on_welcome(Welcome("c" * 32, "m", 5, 5, 1 << 30))
    report = report_of(supervisor, item, 19)
    assert report is not None
    assert (report.end_reason, report.message) == (EndReason.PROBE_FAILED, "Liveness probe failed: HTTP 500")
    assert (report.exit_code, report.log_tail) == (137, "tail")


def test_what_ended_by_itself_before_the_probe_failed_did_not_fail_its_probe() -> None:
    supervisor, item = serving(Probes(liveness=probe(failures=1)))
    supervisor.on_answer(item.attempt, LIVENESS, "HTTP 500", 11)
    supervisor.on_tick(10)
    supervisor.on_answer(item.attempt, LIVENESS, "HTTP 500", 11)
    supervisor.on_event(Exited(item.attempt, 10.5, 3), "", 12)
    report = report_of(supervisor, item, 12)
    assert report is not None
    assert (report.end_reason, report.message, report.exit_code) == (EndReason.EXITED, "", 3)


def test_a_restarted_agent_remembers_that_the_startup_probe_has_succeeded() -> None:
    supervisor, item = serving(Probes(startup=probe(), liveness=probe()))
    supervisor.on_tick(10)
    assert supervisor.on_answer(item.attempt, STARTUP, "", 11) != []
    again = Supervisor("c" * 32)
    again.restore([supervisor.attempts[item.attempt]])
    (asked,) = again.on_tick(30)
    assert isinstance(asked, Ask)
    assert asked.kind is LIVENESS


# ---- http ----


@pytest.fixture
async def server() -> AsyncIterator[int]:
    """Answers with the status that the path names."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).split()[1].decode()
        await reader.readuntil(b"\r\n\r\n")
        status = path.strip("/").split("?")[0]
        writer.write(f"HTTP/1.1 {status} Said\r\nLocation: /500\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        yield listening.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("path", "failure"),
    [("/200", ""), ("/204?x=%20", ""), ("/302", ""), ("/399", ""), ("/400", "HTTP 400"), ("/503", "HTTP 503")],
)
async def test_an_answer_from_200_to_399_is_good(server: int, path: str, failure: str) -> None:
    assert await http_failure(HttpCheck(server, path)) == failure


async def test_a_port_where_nobody_listens_or_no_http_is_spoken_is_a_failure(server: int) -> None:
    assert await http_failure(HttpCheck(1)) == "port 1: Connection refused"
    assert (await http_failure(HttpCheck(server, "/200", "https"))).startswith(f"port {server}: ")


# ---- host processes ----


class Bench:
    """A process runtime with its keeper."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keeper = KeeperClient(folder / "keeper")
        self.runtime = ProcessRuntime(self.keeper)
        self.events: list[RuntimeEvent] = []

    async def run(self, item: Order) -> Order:
        place = AttemptFolder(self.folder / item.attempt)
        place.root.mkdir(mode=0o711)
        await self.runtime.start(item, place)
        await eventually(lambda: any(isinstance(e, Progress) and e.attempt == item.attempt for e in self.events))
        return item

    async def ask(self, item: Order, *command: str, timeout: float = 10) -> str:
        asked = Probe(check=ExecCheck(list(command)), timeout_seconds=timeout)
        return await self.runtime.probe(item, LIVENESS, asked)


@pytest.fixture
async def bench(open_folder: Path) -> AsyncIterator[Bench]:
    made = Bench(open_folder)
    await made.runtime.open("m" * 32, made.events.append)
    yield made
    await made.runtime.close()
    await made.keeper.close()


async def test_a_command_runs_in_the_workers_environment_and_folder_as_its_user(bench: Bench) -> None:
    item = await bench.run(script("echo here > place; sleep 1000", env={"GREETING": "good day"}))
    await eventually(lambda: (bench.folder / item.attempt / "work" / "place").exists())
    asks = 'test "$(cat place)" = here && test "$GREETING" = "good day" || { id -u; exit 3; }'
    assert await bench.ask(item, "sh", "-c", asks) == ""
    user = await bench.ask(item, "sh", "-c", "id -u; exit 1")
    assert user == f"exited with code 1: {bench.keeper.user.uid}"
    main = next(pid for pid in pids() if b"sleep\x001000" in command_line(pid) and is_of(item, pid))
    assert await bench.ask(item, "cmp", "/proc/self/cgroup", f"/proc/{main}/cgroup") == ""
    assert await bench.ask(item, "no-such-command") == "exited with code 127: no-such-command: command not found"
    await bench.runtime.stop(item.attempt, 0)
    await eventually(lambda: any(isinstance(event, Exited) for event in bench.events))
    with pytest.raises(CannotProbe):
        await bench.ask(item, "true")


async def test_a_command_that_takes_too_long_is_killed_and_its_worker_goes_on(bench: Bench) -> None:
    item = await bench.run(script("sleep 1000"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await bench.ask(item, "sleep", "2000", timeout=0.2)
    await eventually(lambda: not any(b"sleep\x002000" in command_line(pid) for pid in pids()))
    assert await bench.ask(item, "true") == ""
    await bench.runtime.stop(item.attempt, 0)
    await eventually(lambda: any(isinstance(event, Exited) for event in bench.events))


async def test_a_keeper_of_an_earlier_version_says_nothing_about_its_workers(bench: Bench) -> None:
    item = await bench.run(script("sleep 1000"))
    bench.keeper.probes = False  # as its greeting would leave it
    with pytest.raises(CannotProbe, match="earlier version"):
        await bench.ask(item, "false")
    await bench.runtime.stop(item.attempt, 0)
    await eventually(lambda: any(isinstance(event, Exited) for event in bench.events))


async def test_a_command_does_not_outlive_its_worker(bench: Bench) -> None:
    item = await bench.run(script("sleep 1000"))
    asking = asyncio.create_task(bench.ask(item, "sleep", "3000", timeout=600))
    await eventually(lambda: any(b"sleep\x003000" in command_line(pid) for pid in pids()))
    await bench.runtime.stop(item.attempt, 0)
    await eventually(lambda: any(isinstance(event, Exited) for event in bench.events))
    assert not any(b"sleep\x003000" in command_line(pid) for pid in pids())
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


def is_of(item: Order, pid: int) -> bool:
    return f"ASTRA_ATTEMPT_UID={item.attempt}".encode() in environment(pid)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# ---- a whole agent ----


async def told(console: FakeConsole, item: Order, condition: Callable[[Report], bool]) -> Report:
    """The first newest report that is so."""
    found: list[Report] = []

    def there() -> bool:
        report = console.newest(item.attempt)
        found[:] = [report] if report is not None and condition(report) else []
        return bool(found)

    await console.until(there)
    return found[0]


async def test_an_agent_asks_and_restarts_nothing_by_itself(make_agent, console) -> None:
    """Not ready at first, then ready, then no longer alive: stopped for it, and told with the reason."""
    agent: Agent = make_agent()
    probes = Probes(
        readiness=Probe(check=ExecCheck(["test", "-e", "ready"]), period_seconds=0.1, timeout_seconds=10),
        liveness=Probe(check=ExecCheck(["test", "!", "-e", "sick"]), period_seconds=0.1, timeout_seconds=10),
    )
    item = script("sleep 1000", probes=probes)
    await console.assign(item)
    await told(console, item, lambda report: report.not_ready == "its readiness probe has not succeeded yet")
    work = agent.state / "attempts" / item.attempt / "work"
    (work / "ready").touch()
    await told(console, item, lambda report: report.not_ready == "" and report.phases[-1].phase is Phase.RUNNING)
    (work / "sick").touch()
    end = await told(console, item, lambda report: report.end_reason is not None)
    assert (end.end_reason, end.exit_code) == (EndReason.PROBE_FAILED, 143)
    assert end.message == "Liveness probe failed: exited with code 1"


async def test_a_simulated_workers_probes_answer_by_a_script(make_agent, console) -> None:
    make_agent(runtime="simulated")
    once = Probe(check=HttpCheck(1), period_seconds=0.1, timeout_seconds=10, failure_threshold=1)
    script = {"ASTRA_SIMULATE_STARTUP": "ok", "ASTRA_SIMULATE_LIVENESS": "ok,ok,hangs"}
    item = order("sleep", "1000", env=script, probes=Probes(startup=once, liveness=once))
    await console.assign(item)
    end = await told(console, item, lambda report: report.end_reason is not None)
    assert (end.end_reason, end.message) == (EndReason.PROBE_FAILED, "Liveness probe failed: simulated: hangs")
