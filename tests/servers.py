"""One private PostgreSQL and Redis for the whole test run, started before Django reads its settings: a plugin (`-p`)."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from astraconsole import embedded

_folder: Path | None = None
_servers: embedded.Embedded | None = None



def _start_servers() -> None:
    global _folder, _servers
    if os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL"):
        return  # an xdist worker, or servers given from outside
    _folder = Path(tempfile.mkdtemp(prefix="astra-tests-"))
    _folder.chmod(0o711)
    _servers = embedded.start(_folder)
    os.environ["DATABASE_URL"] = _servers.database_url
    os.environ["REDIS_URL"] = _servers.redis_url


_start_servers()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _servers is not None and _folder is not None:
        _servers.stop()
        shutil.rmtree(_folder, ignore_errors=True)
