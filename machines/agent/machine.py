"""One machine: its supervisor's decisions carried out on the journal, the runtime and the connection."""

import asyncio
import logging
import time
from collections.abc import Coroutine
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from machines.agent import clock, output
from machines.agent.address import reachable
from machines.agent.answering import answer_to
from machines.agent.attempt import Attempt
from machines.agent.barrier import Barrier
from machines.agent.code import CodeStep
from machines.agent.connection import Connection, MachineRemoved
from machines.agent.credential_providers import Providers
from machines.agent.credentials import Credentials
from machines.agent.data.roots import Roots
from machines.agent.data.volumes import Volumes
from machines.agent.data_board import DataBoard
from machines.agent.effects import Accept, Archive, Ask, Effect, Leave, OpenBarrier, Remove, Save, Stop
from machines.agent.gpus import Gpus
from machines.agent.journal import Journal, Kept
from machines.agent.launch import Launch
from machines.agent.preparing import Preparation
from machines.agent.probes import ProbeKind
from machines.agent.probing import answer_of
from machines.agent.runtimes.base import (
    Adoptable,
    CannotStart,
    Exited,
    Failed,
    Progress,
    Runtime,
    RuntimeEvent,
    at_once,
)
from machines.agent.sampler import Sampler
from machines.agent.secret_files import SecretFiles
from machines.agent.supervisor import Supervisor
from machines.orders import Order, Probe
from machines.protocol import (
    VERSION,
    Acknowledge,
    Assignments,
    Call,
    EndReason,
    Gpu,
    Heartbeat,
    Hello,
    Inventory,
    Phase,
    Reply,
    ToAgent,
    Welcome,
)

TICK_SECONDS = 0.5
TRIM_SECONDS = 2  # between looks at how long the outputs have grown
FLUSH_SPACING_SECONDS = 0.01  # news goes out at once, but under load several pieces in one frame
ACCEPTED_NEWS_SECONDS = 0.05  # "order received" alone may wait for what comes of it
RETRY_REMOVE_SECONDS = 5
KNOWN_IN_HELLO = 25_000  # a frame of the agent is bounded
LOG_KEEP_BYTES = 1 << 30  # until a console says otherwise

log = logging.getLogger(__name__)


def agent_version() -> str:
    try:
        return version("astraconsole")
    except PackageNotFoundError:
        return "0"


class Machine:
    """Runs until cancelled; workers go on then. `journal` is open, and stays so. `stop_grace_seconds`: what this
    machine leaves between SIGTERM and SIGKILL; each order brings it back."""

    def __init__(
        self,
        name: str,
        console: str,
        journal: Journal,
        runtime: Runtime,
        inventory: Inventory,
        stop_grace_seconds: float,
        gpus: Gpus,
        credentials_file: Path,
        drive_roots: Roots,
    ) -> None:
        self.name = name
        self.journal = journal
        self.runtime = runtime
        self.inventory = inventory
        self.stop_grace_seconds = stop_grace_seconds
        self.supervisor = Supervisor(journal.read_text("console"))
        self.connection = Connection(console, lambda: journal.read_text("token"), self)
        self._sampler = Sampler(runtime, gpus, self.supervisor, self.connection.send, self._on_gpus, inventory.gpus)
        self._local_address = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self.board = DataBoard(self.connection.send)
        self._credentials = Credentials(
            Providers(credentials_file),
            SecretFiles(journal.folder, journal.machine_id()),
            self.board,
        )
        self._volumes = Volumes(journal.folder / "data", drive_roots, self._credentials.value, self.board)
        code = CodeStep(console, lambda: journal.read_text("token"))
        self._preparation = Preparation([self._volumes.prepare, self._credentials.prepare, code])
        self._launches: dict[str, Launch] = {}  # of attempts that have not started
        self._probed: dict[str, Order] = {}  # of live attempts with probes
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flushed_at = 0.0
        self._heartbeat: asyncio.Task[None] | None = None
        self._all_ended = asyncio.Event()
        self._to_trim: set[str] = set()
        self._log_keep_bytes = runtime.share_log(LOG_KEEP_BYTES)

    async def run(self) -> None:
        """Returns when the machine was removed from its cluster and its workers are gone. Raises RuntimeUnavailable."""
        await self._take_up()
        ticker = asyncio.create_task(self._tick())
        self._spawn(self._sampler.run())
        try:
            await self.connection.run()
        except MachineRemoved as removed:
            log.warning("%s: %s", self.name, removed)
            self._perform(self.supervisor.on_removed_machine(clock.now()))
            await self._all_ended.wait()
            self.journal.forget_token()
        finally:
            for task in (ticker, *self._tasks):
                task.cancel()
            await asyncio.gather(ticker, *self._tasks, return_exceptions=True)
            await self._credentials.close()
            await self._volumes.close()
            self.board.close()
            await self.runtime.close()

    async def _take_up(self) -> None:
        """What an earlier agent left on this machine, before the console is asked for anything new."""
        kept = self.journal.load()
        self.supervisor.restore([item.attempt for item in kept])
        self._credentials.keep_only({item.attempt.uid for item in kept if not item.attempt.ended})
        self._volumes.take_up(self.journal.attempt_folder(item.attempt.uid) for item in kept if not item.attempt.ended)
        await self.runtime.open(self.journal.machine_id(), self._on_event)
        known = [item.attempt.uid for item in kept]
        orders = {item.order.attempt: item.order for item in kept}
        self._probed = {uid: order for uid, order in orders.items() if order.probes is not None}
        live = sorted((item for item in kept if not item.attempt.ended), key=lambda item: item.rebooted)
        for rebooted, items in groupby(live, key=lambda item: item.rebooted):
            adoptables = [self._adoptable(item) for item in items]
            for item in adoptables:
                self._sampler.hold(item.order)
            for uid in await self.runtime.adopt(adoptables, known, rebooted=rebooted):
                self._begin(orders[uid])
        if not live:
            await self.runtime.adopt([], known, rebooted=False)
        self._perform(self.supervisor.stops_pending(clock.now()))

    def _adoptable(self, item: Kept) -> Adoptable:
        running = item.attempt.time_of(Phase.RUNNING) is not None
        return Adoptable(item.order, self.journal.attempt_folder(item.order.attempt), running, item.clock_shift)

    # ---- the connection ----------------------------------------------------------------------------------------------

    def hello(self, local_address: str) -> Hello:
        self._local_address = local_address
        address = self.inventory.address or reachable(local_address)
        return Hello(
            version=VERSION,
            agent_version=agent_version(),
            boot_id=self.journal.stamp.boot,
            wall_clock=time.time(),
            inventory=msgspec.structs.replace(self.inventory, address=address),
            stop_grace_seconds=self.stop_grace_seconds,
            attempts=self.supervisor.known(KNOWN_IN_HELLO),
            place=self.journal.place,
        )

    def on_message(self, message: ToAgent) -> None:
        match message:
            case Welcome():
                self._on_welcome(message)
            case Assignments():
                if self.supervisor.counts(message):
                    self._credentials.set_sources(message.credentials)
                    self._volumes.set_sources(message.volumes)
                self._perform(self.supervisor.on_assignments(message, clock.now()))
            case Acknowledge():
                self._perform(self.supervisor.on_acknowledge(message))
            case Call():
                self._spawn(self._answer(message))

    def on_disconnected(self) -> None:
        self.supervisor.on_disconnected()
        if self._heartbeat is not None:
            self._heartbeat.cancel()

    def _on_welcome(self, message: Welcome) -> None:
        first = not self.supervisor.console
        effects = self.supervisor.on_welcome(message)
        self._perform(effects)
        if effects:
            return
        if first:
            self.journal.write_text("console", message.console)
        self._log_keep_bytes = self.runtime.share_log(message.log_keep_bytes)
        self._sampler.seconds = message.sample_seconds
        log.info("%s: connected to %s", self.name, self.connection.url)
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._heartbeat = self._spawn(self._send_heartbeats(message.heartbeat_seconds))
        self.board.tell()

    def _on_gpus(self, gpus: list[Gpu]) -> None:
        """Their health, or their number, has changed: say hello again."""
        self.inventory = msgspec.structs.replace(self.inventory, gpus=gpus)
        if self.supervisor.welcome is not None:
            self.connection.send(self.hello(self._local_address))

    async def _send_heartbeats(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            self.connection.send(Heartbeat(self.supervisor.applied_revision, time.time()))

    # ---- carrying out ------------------------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect] | list[Stop]) -> None:
        for effect in effects:
            match effect:
                case Accept(order, attempt):
                    self._accept(order, attempt)
                case Save(attempt):
                    self.journal.save(attempt)
                case OpenBarrier(uid):
                    if (launch := self._launches.get(uid)) is not None and launch.barrier is not None:
                        launch.barrier.open()
                case Stop(uid, grace_seconds):
                    if (launch := self._launches.get(uid)) is not None:
                        launch.stop()
                    self._spawn(self.runtime.stop(uid, grace_seconds))
                case Ask(uid, kind, probe):
                    self._spawn(self._probe(uid, kind, probe))
                case Remove(uid):
                    self._spawn(self._remove(uid))
                case Archive(uid):
                    self._spawn(self._archive(uid))
                case Leave(reason):
                    log.error("%s: %s", self.name, reason)
                    self.connection.leave()
        if self.supervisor.idle:
            self._all_ended.set()
        else:
            self._all_ended.clear()
        self._plan_flush()

    def _accept(self, order: Order, attempt: Attempt) -> None:
        try:
            self.journal.accept(order, attempt)
        except OSError as error:
            message = f"the machine cannot write its folder: {error.strerror}"
            self._on_event(Failed(order.attempt, clock.now(), EndReason.START_FAILED, message))
            return
        self._begin(order)

    def _begin(self, order: Order) -> None:
        if order.probes is not None:
            self._probed[order.attempt] = order
        self._sampler.hold(order)
        launch = self._launches[order.attempt] = Launch(order.barrier)
        self._spawn(self._start(order, launch))

    async def _wait_for_others(self, uid: str, barrier: Barrier) -> None:
        self._on_event(Progress(uid, Phase.READY, clock.now()))
        await barrier.wait()

    async def _start(self, order: Order, launch: Launch) -> None:
        folder = self.journal.attempt_folder(order.attempt)
        try:
            waits = partial(self._on_waiting, order.attempt)
            prepared = await launch.prepare(self._preparation.prepare(order, folder, waits))
            ready = partial(self._wait_for_others, order.attempt, launch.barrier) if launch.barrier else at_once
            await self.runtime.start(order, folder, prepared, ready)
        except CannotStart as error:
            if order.engine is not None:  # it may be there already, also from an earlier life of the agent
                await self._remove_container(order.attempt)
            self._on_event(
                Failed(order.attempt, clock.now(), error.reason, error.message, error.exit_code, error.pull_failure)
            )
        except Exception as error:
            log.exception("%s: attempt %s cannot be started", self.name, order.attempt)
            self._on_event(Failed(order.attempt, clock.now(), EndReason.START_FAILED, str(error) or repr(error)))
            await self.runtime.remove(order.attempt)
        finally:
            del self._launches[order.attempt]

    def _on_waiting(self, uid: str, sentence: str) -> None:
        self._perform(self.supervisor.on_waiting(uid, sentence))

    async def _probe(self, uid: str, kind: ProbeKind, probe: Probe) -> None:
        failure = await answer_of(self.runtime, self._probed[uid], kind, probe)
        self._perform(self.supervisor.on_answer(uid, kind, failure, clock.now()))

    async def _remove(self, uid: str) -> None:
        await self._remove_container(uid)
        await asyncio.to_thread(self.journal.remove, uid)
        self._perform(self.supervisor.on_removed(uid, clock.now()))

    async def _archive(self, uid: str) -> None:
        await self._remove_container(uid)
        kept_from = await asyncio.to_thread(self.journal.archive, uid)
        self._perform(self.supervisor.on_archived(uid, kept_from, clock.now()))

    async def _remove_container(self, uid: str) -> None:
        while True:
            try:
                await self.runtime.remove(uid)
                return
            except Exception:
                log.exception("%s: attempt %s cannot be removed yet", self.name, uid)
                await asyncio.sleep(RETRY_REMOVE_SECONDS)

    def _on_event(self, event: RuntimeEvent) -> None:
        tail = ""
        if self.supervisor.wants_tail(event):
            tail = output.last_lines(self.journal.attempt_folder(event.attempt).output)
        if isinstance(event, Exited | Failed):
            self._credentials.discard(event.attempt)
            self._volumes.discard(event.attempt)
            self._to_trim.add(event.attempt)
            self._probed.pop(event.attempt, None)
        self._perform(self.supervisor.on_event(event, tail, clock.now()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: %r", self.name, error, exc_info=error)

    # ---- telling -----------------------------------------------------------------------------------------------------

    def _plan_flush(self) -> None:
        if not self.supervisor.waiting:
            return
        loop = asyncio.get_running_loop()
        pause = 0.0 if self.supervisor.urgent else ACCEPTED_NEWS_SECONDS
        at = max(loop.time() + pause, self._flushed_at + FLUSH_SPACING_SECONDS)
        if self._flush_timer is not None:
            if self._flush_timer.when() <= at:
                return
            self._flush_timer.cancel()
        self._flush_timer = loop.call_at(at, self._flush)

    def _flush(self) -> None:
        self._flush_timer = None
        self._flushed_at = asyncio.get_running_loop().time()
        for frame in self.supervisor.take_reports(clock.now()):
            self.connection.send(frame)

    async def _tick(self) -> None:
        trim_at = 0.0
        while True:
            self._perform(self.supervisor.on_tick(clock.now()))
            if clock.now() >= trim_at:
                trim_at = clock.now() + TRIM_SECONDS
                await self._trim(self._log_keep_bytes)
            await asyncio.sleep(TICK_SECONDS)

    async def _trim(self, keep: int) -> None:
        uids = {*self._to_trim, *(attempt.uid for attempt in self.supervisor.live)}
        self._to_trim.clear()
        if uids:
            paths = [self.journal.attempt_folder(uid).output for uid in uids]
            await asyncio.to_thread(output.drop_oldest, paths, keep)

    # ---- answering ---------------------------------------------------------------------------------------------------

    async def _answer(self, call: Call) -> None:
        uid = call.request.attempt
        answer = await answer_to(call, self.supervisor.attempts.get(uid), self.journal.attempt_folder(uid).output)
        self.connection.send(Reply(call.id, answer))
