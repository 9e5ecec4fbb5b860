"""The keeper: a tiny process that starts the host processes of workers, reaps them and writes down how they ended.

Started by `machines.agent.keeper_client`; the standard library alone. It outlives the agent, so that agents can be
restarted or upgraded while workers run, and leaves when it has neither workers nor an agent. As root it becomes an
unprivileged user once, at its start: changing the user at each spawn would turn vfork off, and process creation is what
bounds how fast a machine takes work.

Agent → keeper: {op: spawn, attempt, argv, env, cwd, working_dir, output, exit, cgroups}, {op: stop, attempt, grace},
{op: adopt, attempt, pid, born, exit}, {op: wait, cgroups}, {op: probe, attempt, probe, argv, env, cwd, working_dir,
timeout}. Keeper → agent: once {ev: live, keeper, home, attempts, probes}, then {ev: started, attempt, pid, born, at,
cgroups}, {ev: failed, attempt, code, error, at}, {ev: exit, attempt, code, at, oom}, {ev: probed, attempt, probe, code,
output}. A spawn of an attempt that runs, or whose start was tried as its `exit` file says, starts nothing: it tells
what became of it.
"""

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import sys
from collections import deque

from machines.agent.clock import now
from machines.agent.keeper_link import Link, Message
from machines.agent.keeper_probes import KeeperProbes
from machines.agent.processes import (
    PR_SET_CHILD_SUBREAPER,
    End,
    OomScore,
    append,
    become,
    born,
    end_line,
    find_program,
    members,
    oom_kills,
    prctl,
    read_trace,
    scan,
    send_signal,
    start_process,
    tried_line,
    wait_any,
)

SOCKET = "keeper.sock"
EXEC_CODES = {errno.ENOENT: 127, errno.EACCES: 126, errno.ENOEXEC: 126}
SPAWNS_PER_TURN = 8  # then look at exits and tell the agent: news must not wait for a long queue
KILL_AGAIN_SECONDS = 0.05  # a process may fork while its group is being killed
SCAN_SHARE = 9  # after a look through /proc, do other work for nine times as long
WAIT_FOR_AGENT_SECONDS = 10
IDLE_SECONDS = 60
WORKERS_OOM_SCORE = b"1000"  # when memory is short, workers die before what keeps the machine going, as the keeper


class Worker:
    """A worker's main process, and after its end what is left of its descendants."""

    def __init__(self, attempt: str, pid: int, exit_path: str, cgroups: list[str], oom_before: int) -> None:
        self.attempt = attempt
        self.pid = pid
        self.born = born(pid)
        self.at = now()
        self.exit_path = exit_path
        self.cgroups = cgroups
        self.oom_before = oom_before
        self.end: End | None = None
        self.kill_at: float | None = None
        self.pidfd: int | None = None  # not our child: taken over from a keeper that was killed

    def facts(self) -> Message:
        return {"attempt": self.attempt, "pid": self.pid, "born": self.born, "at": self.at, "cgroups": self.cgroups}

    def oom_kills(self) -> int:
        return max(0, oom_kills(self.cgroups) - self.oom_before)


class Keeper:
    """All of it: one thread, one loop. The truth is in the exit files; messages only save a look there."""

    def __init__(self, listener: socket.socket, home: list[str], oom_score: OomScore) -> None:
        self.poll = select.poll()
        self.link = Link(listener, self.poll)
        self.probes = KeeperProbes(self.link.tell)
        self.home = home  # the keeper's own cgroups
        self.place = home  # where it is
        self.wait_in = home  # where it goes when there is nothing to start
        self.oom_score = oom_score
        self.queue: deque[Message] = deque()
        self.workers: dict[str, Worker] = {}
        self.by_pid: dict[int, Worker] = {}  # whose main process lives
        self.ending: dict[str, Worker] = {}  # whose main process is gone
        self.scan_after = 0.0
        self.leave_at: float | None = now() + WAIT_FOR_AGENT_SECONDS
        self.wakeup, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.poll.register(self.wakeup, select.POLLIN)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)

    def run(self) -> None:
        while not self._may_leave():
            ready = {descriptor for descriptor, _ in self.poll.poll(self._timeout() * 1000)}
            self._listen(ready)
            self._spawn_some()
            self._reap(ready)
            self._kill_due()
            self._finish()
            self.link.flush()

    def _may_leave(self) -> bool:
        if self.workers or self.queue or self.link.agent is not None:
            return False
        if self.leave_at is None:
            self.leave_at = now()  # the agent has left; before the first one came there was time to wait for it
        return now() >= self.leave_at

    def _timeout(self) -> float:
        """Seconds until there is something to do unasked."""
        if self.queue:
            return 0
        due = [worker.kill_at for worker in self.workers.values() if worker.kill_at is not None]
        due += self.probes.deadlines()
        if not all(worker.cgroups for worker in self.ending.values()):
            due.append(self.scan_after)
        if self.leave_at is not None:
            due.append(self.leave_at)
        return max(0.001, min(due, default=now() + IDLE_SECONDS) - now())

    # ---- the agent ---------------------------------------------------------------------------------------------------

    def _listen(self, ready: set[int]) -> None:
        if self.link.listener.fileno() in ready:
            self.link.accept()
            self.leave_at = None
            live = [worker.facts() for worker in self.workers.values()]
            self.link.tell({"ev": "live", "keeper": os.getpid(), "home": self.home, "attempts": live, "probes": True})
        elif self.link.agent is not None and self.link.agent.fileno() in ready:
            for message in self.link.receive():
                self._handle(message)

    def _handle(self, message: Message) -> None:
        if message["op"] == "spawn":
            self.queue.append(message)
        elif message["op"] == "stop":
            self._stop(message["attempt"], message["grace"])
        elif message["op"] == "adopt":
            self._adopt(message)
        elif message["op"] == "wait":
            self.wait_in = message["cgroups"]
        elif message["op"] == "probe":
            self._probe(message)

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _spawn_some(self) -> None:
        for _ in range(min(SPAWNS_PER_TURN, len(self.queue))):
            message = self.queue.popleft()
            if message["attempt"] in self.workers:
                self.link.tell({"ev": "started", **self.workers[message["attempt"]].facts()})
                continue
            try:
                self._spawn(message)
            except (OSError, ValueError) as error:  # ValueError: a NUL in an argument, a name the kernel refuses
                reason = error.strerror if isinstance(error, OSError) else str(error)
                self._not_started(message, None, f"cannot start {message['argv'][0]}: {reason}")
        if not self.queue and self.place != self.wait_in:
            self.link.flush()  # the move may take the kernel many milliseconds: tell the news first
            self._wait()

    def _spawn(self, message: Message) -> None:
        trace = read_trace(message["exit"])
        if trace.tried:
            self._tell_end(message["attempt"], trace.end or End(None, now(), 0))
            return
        try:
            self._enter(message)
        except OSError as error:
            self._not_started(message, None, f"cannot enter {error.filename or 'its cgroup'}: {error.strerror}")
            return
        program, code = find_program(message["argv"][0], message["env"].get("PATH", os.defpath))
        if not program:
            reason = "command not found" if code == 127 else "not executable"
            self._not_started(message, code, f"{message['argv'][0]}: {reason}")
            return
        oom_before = oom_kills(message["cgroups"])
        try:
            append(message["exit"], tried_line(oom_before, message["cgroups"]))
            output = os.open(message["output"], os.O_WRONLY | os.O_APPEND)
        except OSError as error:  # the disk is full, or its folder is gone
            self._not_started(message, None, f"the machine cannot write its folder: {error.strerror}")
            return
        try:
            pid = self._start(program, message, output)
        except OSError as error:
            self._not_started(message, EXEC_CODES.get(error.errno or 0), f"{message['argv'][0]}: {error.strerror}")
            return
        finally:
            os.close(output)
        worker = Worker(message["attempt"], pid, message["exit"], message["cgroups"], oom_before)
        self.workers[worker.attempt] = self.by_pid[pid] = worker
        self.link.tell({"ev": "started", **worker.facts()})

    def _start(self, program: str, message: Message, output: int) -> int:
        try:
            self.oom_score.write(WORKERS_OOM_SCORE)  # the child inherits it
            return start_process(program, message, output)
        finally:
            self.oom_score.restore()

    def _probe(self, message: Message) -> None:
        """Ask a worker: beside its own processes, as one of them. One whose main process is gone is not asked."""
        worker = self.workers.get(message["attempt"])
        if worker is None or worker.end is not None:
            return
        program, code = find_program(message["argv"][0], message["env"].get("PATH", os.defpath))
        if not program:
            self.probes.refuse(message, code, f"{message['argv'][0]}: command not found")
            return
        try:
            self._enter({**message, "cgroups": worker.cgroups})
            self.probes.start(message, lambda output: self._start(program, message, output))
        except (OSError, ValueError) as error:
            self.probes.refuse(message, 126, f"{message['argv'][0]}: {error}")

    def _enter(self, message: Message) -> None:
        os.chdir(message["cwd"])
        if message["working_dir"]:
            os.chdir(message["working_dir"])
        self._join(message["cgroups"] or self.home)

    def _join(self, cgroups: list[str]) -> None:
        """Move the keeper itself, so that the child is born inside: no moment outside, and no wrapper program. A first
        move after some rest costs the kernel many milliseconds (it waits for all cores), so the keeper waits in the
        cgroup that the next worker will have, and the agent sets that one's limits when it knows them."""
        if cgroups != self.place:
            for path in cgroups:
                append(f"{path}/cgroup.procs", b"0")
            self.place = cgroups

    def _wait(self) -> None:
        for place in (self.wait_in, self.home):
            try:
                self._join(place)
                break
            except OSError as error:
                sys.stderr.write(f"cannot enter {place}: {error}\n")
        self.wait_in = self.place

    def _not_started(self, message: Message, code: int | None, error: str) -> None:
        at = now()
        if code is not None:
            with contextlib.suppress(OSError):  # its folder is gone: nobody is left to read it
                append(message["output"], f"{error}\n".encode(errors="replace"))
                append(message["exit"], end_line(End(code, at, 0)))
        self.link.tell({"ev": "failed", "attempt": message["attempt"], "code": code, "error": error, "at": at})

    def _tell_end(self, attempt: str, end: End) -> None:
        self.link.tell({"ev": "exit", "attempt": attempt, "code": end.code, "at": end.at, "oom": end.oom})

    def _adopt(self, message: Message) -> None:
        """Watch a process that an earlier keeper started: how it ends cannot be learnt, only when."""
        if message["attempt"] in self.workers:
            self.link.tell({"ev": "started", **self.workers[message["attempt"]].facts()})
            return
        trace = read_trace(message["exit"])
        worker = Worker(message["attempt"], message["pid"], message["exit"], list(trace.cgroups), trace.oom_before)
        self.workers[worker.attempt] = worker
        if trace.end is not None:  # only its descendants are still to be looked after
            worker.end = trace.end
            self.ending[worker.attempt] = worker
            return
        try:
            worker.pidfd = os.pidfd_open(worker.pid)
        except OSError:
            self._main_ended(worker, None)
            return
        self.by_pid[worker.pid] = worker
        self.poll.register(worker.pidfd, select.POLLIN)
        if born(worker.pid) != message["born"]:  # looked at only now that the pidfd holds the number
            self._main_ended(worker, None)
        else:
            self.link.tell({"ev": "started", **worker.facts()})

    # ---- ending ------------------------------------------------------------------------------------------------------

    def _stop(self, attempt: str, grace: float) -> None:
        for message in [message for message in self.queue if message["attempt"] == attempt]:
            self.queue.remove(message)
            self._not_started(message, None, "stopped before it began")
        worker = self.workers.get(attempt)
        if worker is None or worker.kill_at is not None:
            return
        worker.kill_at = now() + grace
        self._signal(worker, signal.SIGTERM)

    def _reap(self, ready: set[int]) -> None:
        if self.wakeup in ready:
            os.read(self.wakeup, 65536)
        for pid, status in iter(wait_any, None):
            code = os.waitstatus_to_exitcode(status)
            code = code if code >= 0 else 128 - code
            if pid in self.by_pid:
                self._main_ended(self.by_pid[pid], code)
            else:  # or an orphan of a worker, that came to us
                self.probes.ended(pid, code, self.workers)
        for worker in [worker for worker in self.by_pid.values() if worker.pidfd in ready]:
            self._main_ended(worker, None)

    def _main_ended(self, worker: Worker, code: int | None) -> None:
        self.by_pid.pop(worker.pid, None)
        if worker.pidfd is not None:
            self.poll.unregister(worker.pidfd)
            os.close(worker.pidfd)
            worker.pidfd = None
        worker.end = End(code, now(), worker.oom_kills())
        self.ending[worker.attempt] = worker
        try:
            append(worker.exit_path, end_line(worker.end))
        except OSError as error:  # its folder is gone: nobody is left to ask
            sys.stderr.write(f"no exit record for {worker.attempt}: {error}\n")

    def _kill_due(self) -> None:
        self.probes.kill_due()
        for worker in self.workers.values():
            if worker.kill_at is not None and worker.kill_at <= now():
                self._signal(worker, signal.SIGKILL)
                worker.kill_at = now() + KILL_AGAIN_SECONDS

    def _finish(self) -> None:
        """Kill what ended workers left behind; tell the end of those of which nothing is left."""
        left = self._left_behind()
        for attempt, pids in left.items():
            worker = self.ending[attempt]
            if pids:
                for pid in pids:
                    send_signal(pid, signal.SIGKILL)
                worker.kill_at = now() + KILL_AGAIN_SECONDS
                continue
            del self.ending[attempt], self.workers[attempt]
            assert worker.end is not None
            self._tell_end(attempt, worker.end)

    def _left_behind(self) -> dict[str, list[int]]:
        """Of each ended worker the processes still there; without those that it would cost too much to look at now.
        A cgroup names them exactly; without one they are found by session and by the mark in their environment."""
        left = {worker.attempt: members(worker.cgroups[0]) for worker in self.ending.values() if worker.cgroups}
        leaders = {worker.attempt: worker.pid for worker in self.ending.values() if not worker.cgroups}
        started = now()
        if leaders and started >= self.scan_after:
            left |= scan(leaders)
            self.scan_after = now() + (now() - started) * SCAN_SHARE
        return left

    def _signal(self, worker: Worker, number: signal.Signals) -> None:
        if worker.cgroups:
            pids = members(worker.cgroups[0])
        else:
            pids = scan({worker.attempt: worker.pid})[worker.attempt]
        for pid in pids:
            send_signal(pid, number)


def listen(folder: str) -> socket.socket:
    """In the folder, by a relative name: a socket's path is limited to 107 bytes, a data folder's is not."""
    os.chdir(folder)
    lock = os.open("keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # one keeper per folder, held until it ends
    if os.path.exists(SOCKET):
        os.unlink(SOCKET)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(SOCKET)
    os.chmod(SOCKET, 0o600)
    listener.listen(8)
    os.chdir("/")
    return listener


def main() -> None:
    """FOLDER UID GID [the keeper's own cgroup]…; UID -1: stay who we are."""
    folder, uid, gid, home = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # its workers' ends must not be missed
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.umask(0o022)
    listener = listen(folder)
    prctl(PR_SET_CHILD_SUBREAPER)  # orphans of workers come to us, not to init
    for path in home:
        append(f"{path}/cgroup.procs", b"0")
    oom_score = OomScore()
    if uid >= 0:
        become(uid, gid)
    Keeper(listener, home, oom_score).run()
