"""Machines that hold logs, without agents: they answer `dispatch.call` from files, as an agent does."""

from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from machines import dispatch
from machines.agent import output
from machines.protocol import Answer, Failure, FailureCode, LogChunk, ReadLog, Request


@dataclass
class LogMachines:
    """`silent`: machines that do not answer. `calls`: what was asked, in order."""

    folder: Path
    ended: set[str] = field(default_factory=set)
    archived: set[str] = field(default_factory=set)
    silent: set[UUID] = field(default_factory=set)
    slow: set[UUID] = field(default_factory=set)
    calls: list[Request] = field(default_factory=list)

    def prints(self, attempt: UUID, data: bytes, ends: bool = False) -> None:
        with open(self._path(attempt.hex), "ab") as file:
            file.write(data)
        if ends:
            self.ended.add(attempt.hex)

    def loses(self, attempt: UUID) -> None:
        self._path(attempt.hex).unlink()

    def drops_all_but(self, attempt: UUID, keep: int) -> None:
        output.drop_oldest([self._path(attempt.hex)], keep)

    def _path(self, attempt: str) -> Path:
        return self.folder / f"{attempt}.log"

    async def call(self, machine: UUID, request: Request, timeout: float) -> Answer:
        """In place of `dispatch.call`."""
        self.calls.append(request)
        if machine in self.silent:
            raise dispatch.Unreachable("the machine is not connected")
        if machine in self.slow:
            raise dispatch.CallTimeout(f"the machine did not answer within {timeout:g} s")
        path = self._path(request.attempt)
        if not path.exists():
            return Failure(FailureCode.NOT_FOUND, "no such attempt")
        if isinstance(request, ReadLog):
            piece = output.read(path, request.start, request.limit)
        else:
            piece = output.read_tail(path, request.lines, request.limit)
        ended = piece.whole and request.attempt in self.ended
        return LogChunk(piece.start, piece.data, piece.next, ended, request.attempt in self.archived)
