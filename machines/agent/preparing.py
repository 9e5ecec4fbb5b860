"""What an attempt needs of its machine before its runtime may start it: a step for each kind of thing.

A preparation may wait for as long as it takes (for a credential, for a drive to be filled): it is a task of its own,
says what it waits for, and is cancelled when its attempt is stopped. Nothing of it is written down: an agent that finds
an attempt which has not started prepares it again, so each step must be fit to be repeated.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from machines.agent.runtimes.base import NOTHING_PREPARED, AttemptFolder, Prepared
from machines.orders import Order

Waits: TypeAlias = Callable[[str], None]  # hears the sentence that says what is waited for; "": nothing

# Raises CannotStart when waiting cannot help.
Step: TypeAlias = Callable[[Order, AttemptFolder, Waits], Awaitable[Prepared]]


class Preparation:
    """`steps` in the order they are taken."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self._steps = steps

    async def prepare(self, order: Order, folder: AttemptFolder, waits: Waits) -> Prepared:
        """What all steps give together. Raises CannotStart."""
        prepared = NOTHING_PREPARED
        for step in self._steps:
            prepared = _together(prepared, await step(order, folder, waits))
            waits("")
        return prepared


def _together(first: Prepared, second: Prepared) -> Prepared:
    if second is NOTHING_PREPARED:
        return first
    return replace(
        first,
        env={**first.env, **second.env},
        mounts=[*first.mounts, *second.mounts],
        login=second.login or first.login,
        served_model=second.served_model or first.served_model,
        workspace=second.workspace or first.workspace,
    )
