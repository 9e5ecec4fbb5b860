"""Every case that a test builds must be checked by it."""

from collections.abc import Iterator

import pytest

from tests.scheduling import harness


@pytest.fixture(autouse=True)
def _every_case_is_checked() -> Iterator[None]:
    harness.unchecked.clear()
    yield
    left = len(harness.unchecked)
    harness.unchecked.clear()
    assert not left, f"{left} cases were built and never checked"
