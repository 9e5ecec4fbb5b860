"""Hollow machines: attempts that only pass time, for load and for demonstrations. The protocol is the real one.

The order's environment says what happens: ASTRA_SIMULATE_SECONDS how long it runs (0), ASTRA_SIMULATE_EXIT_CODE how it
ends (0), ASTRA_SIMULATE_PULL_SECONDS how long its image takes (0), ASTRA_SIMULATE_LINES how many lines it writes (3).
ASTRA_SIMULATE_STARTUP, _READINESS and _LIVENESS are the answers of its probes in turn, the last one for ever: `fail,ok`
(ok). `sleep N` as the command runs for N seconds. What runs goes on across a restart of the agent, as a real worker
would.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from machines.agent.clock import now
from machines.agent.gpus import wave
from machines.agent.probes import ProbeKind
from machines.agent.runtimes.base import (
    NOTHING_PREPARED,
    Adoptable,
    AttemptFolder,
    CannotStart,
    Exited,
    Failed,
    Listener,
    Prepared,
    Progress,
    Ready,
    at_once,
)
from machines.agent.usage import Usage
from machines.orders import Order, Probe
from machines.protocol import EndReason, Phase

TERMINATED = 143


@dataclass(frozen=True)
class Plan:
    """What will happen."""

    began: float
    seconds: float
    exit_code: int
    lines: int

    def write(self, folder: AttemptFolder) -> None:
        lines = (f"simulated line {number} of {self.lines}\n" for number in range(1, self.lines + 1))
        folder.output.write_text("".join(lines))
        (folder.root / "simulated").write_text(json.dumps(asdict(self)))


class SimulatedRuntime:
    name = "simulated"

    def __init__(self) -> None:
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._pulls: dict[str, asyncio.Task[None]] = {}
        self._asked: Counter[tuple[str, ProbeKind]] = Counter()
        self._emit: Listener

    async def open(self, machine_id: str, emit: Listener) -> None:
        self._emit = emit

    def share_log(self, keep: int) -> int:
        return keep

    async def adopt(self, attempts: Sequence[Adoptable], known: Sequence[str], *, rebooted: bool) -> Sequence[str]:
        never: list[str] = []
        for item in attempts:
            path = item.folder.root / "simulated"
            if rebooted:
                self._emit(Failed(item.order.attempt, now(), EndReason.MACHINE_REBOOTED))
            elif path.exists():
                self._run(item.order.attempt, Plan(**json.loads(path.read_text())))
            else:
                never.append(item.order.attempt)
        return never

    async def start(
        self, order: Order, folder: AttemptFolder, prepared: Prepared = NOTHING_PREPARED, ready: Ready = at_once
    ) -> None:
        try:
            pull_seconds = number(order.env, "ASTRA_SIMULATE_PULL_SECONDS", 0)
            plan_of(order)
        except ValueError as error:
            raise CannotStart(EndReason.REFUSED, str(error)) from error
        if pull_seconds:
            self._emit(Progress(order.attempt, Phase.PULLING, now()))
            self._pulls[order.attempt] = asyncio.create_task(asyncio.sleep(pull_seconds))
            await asyncio.wait([self._pulls[order.attempt]])
            if self._pulls.pop(order.attempt).cancelled():
                raise CannotStart(EndReason.STOPPED, "")
        await ready()
        plan = plan_of(order)
        plan.write(folder)
        self._run(order.attempt, plan)

    async def stop(self, attempt: str, grace_seconds: float) -> None:
        """A simulated worker ends by SIGTERM at once."""
        pull, timer = self._pulls.get(attempt), self._timers.pop(attempt, None)
        if pull is not None:
            pull.cancel()
        if timer is not None:
            timer.cancel()
            self._emit(Exited(attempt, now(), TERMINATED))

    async def probe(self, order: Order, kind: ProbeKind, probe: Probe) -> str:
        answers = order.env.get(f"ASTRA_SIMULATE_{kind.upper()}", "ok").split(",")
        turn = self._asked[order.attempt, kind]
        self._asked[order.attempt, kind] += 1
        answer = answers[min(turn, len(answers) - 1)].strip()
        return "" if answer == "ok" else f"simulated: {answer}"

    async def remove(self, attempt: str) -> None:
        """Its folder is all there is, and the agent removes that."""

    async def usage(self, attempts: Sequence[str]) -> Mapping[str, Usage]:
        """As plausible as the rest of it: about a core and a half, 2 GiB, 20 MB a second in and out."""
        at = now()
        return {uid: _imagined(uid, at) for uid in attempts if uid in self._timers}

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for pull in self._pulls.values():
            pull.cancel()

    def _run(self, attempt: str, plan: Plan) -> None:
        self._emit(Progress(attempt, Phase.RUNNING, plan.began))
        seconds = max(0.0, plan.began + plan.seconds - now())
        self._timers[attempt] = asyncio.get_running_loop().call_later(seconds, self._end, attempt, plan)

    def _end(self, attempt: str, plan: Plan) -> None:
        if self._timers.pop(attempt, None) is not None:
            self._emit(Exited(attempt, max(plan.began + plan.seconds, 0), plan.exit_code))


def _imagined(uid: str, at: float) -> Usage:
    memory = int((2 + 0.2 * wave(uid, at, 300)) * 2**30)
    return Usage(1.5 * at + 4 * wave(uid, at, 60), memory, 0, int(20e6 * at), int(18e6 * at))


def plan_of(order: Order) -> Plan:
    """Raises ValueError with a sentence."""
    argv = [order.command, *order.args] if order.command else order.args
    slept = float(argv[1]) if len(argv) == 2 and argv[0] == "sleep" and argv[1].replace(".", "", 1).isdigit() else 0
    return Plan(
        began=now(),
        seconds=number(order.env, "ASTRA_SIMULATE_SECONDS", slept),
        exit_code=int(number(order.env, "ASTRA_SIMULATE_EXIT_CODE", 0)),
        lines=int(number(order.env, "ASTRA_SIMULATE_LINES", 3)),
    )


def number(environment: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(environment.get(name, default))
    except ValueError:
        value = -1
    if not 0 <= value < 1e9:
        raise ValueError(f"{name} is not a number of use here: {environment[name]}")
    return value
