"""What tests may need beside Python: skipped with a reason where it is missing, a failure where REQUIRE_ALL=1."""

import os
import shutil
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from hypothesis import settings

# On a busy machine an example may take any time: that is no failure.
settings.register_profile("suite", parent=settings.default, deadline=None)
settings.load_profile("suite")

PROJECT = Path(__file__).resolve().parent.parent
TEST_DATA = Path(os.environ.get("ASTRA_TEST_DATA") or PROJECT.parent / "shared" / "data")
REQUIRE_ALL = os.environ.get("REQUIRE_ALL") == "1"


def _no_engine() -> str:
    if os.geteuid() != 0:
        return "a Docker Engine of the tests' own can only be started by root"
    missing = [name for name in ("dockerd", "docker", "busybox") if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)} (see tests/install)" if missing else ""


def _no_browser() -> str:
    return "" if shutil.which("chromium") else "not installed: chromium (see tests/install)"


def _no_prometheus() -> str:
    return "" if shutil.which("prometheus") else "not installed: prometheus (see tests/install)"


def _no_data() -> str:
    return "" if TEST_DATA.is_dir() else f"no test data at {TEST_DATA} (ASTRA_TEST_DATA names another folder)"


def _no_mount() -> str:
    return "" if os.geteuid() == 0 else "only root can mount a small disk"


def _no_faketime() -> str:
    return "" if shutil.which("faketime") else "not installed: faketime (see tests/install)"


# Marker → why its tests cannot run here, or "".
NEEDS: dict[str, Callable[[], str]] = {
    "engine": _no_engine,
    "browser": _no_browser,
    "data": _no_data,
    "prometheus": _no_prometheus,
    "mount": _no_mount,
    "faketime": _no_faketime,
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, missing in NEEDS.items():
        if item.get_closest_marker(marker) and (reason := missing()):
            pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but REQUIRE_ALL=1: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def static_files_are_found_when_asked_for() -> None:
    """Every test client makes the middleware anew, which would look through all static files each time: 40 ms."""
    django_settings.WHITENOISE_AUTOREFRESH = True


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of recorded logs, job files and traces. Tests that use it carry the marker `data`."""
    return TEST_DATA
