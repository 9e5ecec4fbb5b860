"""One private PostgreSQL and Redis for a test process, started before Django reads its settings: a plugin (`-p`).

An xdist worker has both for itself: channel layer messages do not stay within a Redis database number.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from astraconsole import embedded

_folder: Path | None = None
_servers: embedded.Embedded | None = None
OWN = "ASTRA_TESTS_STARTED_SERVERS"  # set beside URLs that this plugin made, which xdist workers inherit


def _start_servers() -> None:
    global _folder, _servers
    os.environ.setdefault("SECRET_KEY", "of-tests")
    if os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL") and OWN not in os.environ:
        return  # servers given from outside
    _folder = Path(tempfile.mkdtemp(prefix="astra-tests-"))
    _folder.chmod(0o711)
    _servers = embedded.start(_folder)
    os.environ.update({"DATABASE_URL": _servers.database_url, "REDIS_URL": _servers.redis_url, OWN: "1"})


def _stop_servers() -> None:
    global _servers
    if _servers is not None and _folder is not None:
        _servers.stop()
        _servers = None
        shutil.rmtree(_folder, ignore_errors=True)


_start_servers()
atexit.register(_stop_servers)  # also when pytest fails before it has a configuration to undo


def pytest_unconfigure(config: pytest.Config) -> None:
    _stop_servers()
