"""The fault suite: what was injected is counted, and printed at the end with what was survived.

`make test-faults` runs it whole. Everywhere else only the tests marked `everyday` run, a few of each kind.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.faults.stage import Stage, stage

WHOLE = os.environ.get("FAULTS") == "whole"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of this folder's tests; the hook is called with all of them."""
    here = [item for item in items if item.nodeid.startswith("tests/faults/")]
    for item in here:
        item.add_marker(pytest.mark.faults)
    left_out = [] if WHOLE else [item for item in here if item.get_closest_marker("everyday") is None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture(scope="package")
def place() -> Iterator[Stage]:
    """One console for all tests that count no machine as lost: each has machines of its own on it."""
    with stage(env={"MACHINE_LEASE_SECONDS": "30"}) as made:
        yield made


@pytest.fixture
def injected(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """`injected(kind)` or `injected(kind, how_many)`: to be called for each fault, when it is injected."""

    def note(kind: str, times: int = 1) -> None:
        record_property(f"fault: {kind}", times)

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A fault is survived when the whole test that injected it, its end included, has passed."""
    stats = terminalreporter.stats
    told = [report for outcome in ("passed", "failed") for report in stats.get(outcome, []) if report.when == "call"]
    broken = {report.nodeid for report in stats.get("error", [])}
    all_faults: Counter[str] = Counter()
    survived: Counter[str] = Counter()
    for report in told:
        of_test = _faults(report)
        all_faults += of_test
        if report.passed and report.nodeid not in broken:
            survived += of_test
    if not all_faults:
        return
    terminalreporter.section("faults")
    for kind, number in sorted(all_faults.items()):
        terminalreporter.line(f"{kind}: {survived[kind]} of {number}")
    terminalreporter.line(f"faults injected: {all_faults.total()}, survived: {survived.total()}")


def _faults(report: pytest.TestReport) -> Counter[str]:
    found: Counter[str] = Counter()
    for name, value in report.user_properties:
        if name.startswith("fault: ") and isinstance(value, int):
            found[name.removeprefix("fault: ")] += value
    return found
