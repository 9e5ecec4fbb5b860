"""Refusals as sentences: the one place where a reason for waiting is worded. Pure."""

from runs.scheduling.types import Numbers


def sentence(code: str, numbers: Numbers) -> str:
    """The API's reason of a waiting run, without a final stop; never names another run."""
    raise NotImplementedError
