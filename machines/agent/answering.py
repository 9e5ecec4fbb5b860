"""Answers to the console's questions about an attempt's output."""

import asyncio
import os
from pathlib import Path

from machines.agent import output
from machines.agent.attempt import Attempt
from machines.protocol import Answer, Call, Failure, FailureCode, LogChunk, ReadLog, Request


async def answer_to(call: Call, attempt: Attempt | None, path: Path) -> Answer:
    """`path`: of the output of the attempt that is asked about, if the machine knows it."""
    try:
        return await asyncio.wait_for(_read(call.request, attempt, path), call.deadline_seconds)
    except TimeoutError:
        return Failure(FailureCode.DEADLINE, "the machine could not read it in time")
    except FileNotFoundError:
        return Failure(FailureCode.NOT_FOUND, "this machine has no output of that attempt")
    except OSError as error:
        return Failure(FailureCode.INTERNAL, f"the machine cannot read it: {os.strerror(error.errno or 0)}")


async def _read(request: Request, attempt: Attempt | None, path: Path) -> Answer:
    """Whether more can follow is looked at before reading: what ends meanwhile is told by the next answer."""
    if attempt is None:
        raise FileNotFoundError
    ended, archived, kept_from = attempt.ended, attempt.archived_from is not None, attempt.archived_from or 0
    try:
        if isinstance(request, ReadLog):
            piece = await asyncio.to_thread(output.read, path, request.start, request.limit, kept_from)
        else:
            piece = await asyncio.to_thread(output.read_tail, path, request.lines, request.limit, kept_from)
    except FileNotFoundError:
        if attempt.forgotten:
            raise
        return LogChunk(0, b"", 0, ended, archived)  # it has not come to writing anything, or never did
    return LogChunk(piece.start, piece.data, piece.next, ended and piece.whole, archived)
