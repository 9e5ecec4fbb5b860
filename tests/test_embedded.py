"""The private PostgreSQL and Redis start in any folder that somebody may have."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from kombu import Connection

from astraconsole import embedded
from astraconsole.celery import broker_url


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="astra-embedded-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("name", ["two words", "100%20é'x'#c?d"])
def test_every_client_finds_both_in_a_folder_with_a_name_like(folder: Path, name: str) -> None:
    data = folder / name
    data.mkdir(mode=0o711)
    servers = embedded.start(data)
    try:
        with psycopg.connect(servers.database_url) as database:
            assert database.execute("SELECT 1").fetchone() == (1,)
        with redis.Redis.from_url(servers.redis_url) as client:
            assert client.ping()
        with Connection(broker_url(servers.redis_url)) as broker:
            broker.ensure_connection(max_retries=1)
    finally:
        servers.stop()


@pytest.mark.parametrize(("name", "why"), [("long" * 20, "too long"), ("a,b", "holds one of"), ('"a"', "holds one of")])
def test_a_folder_that_the_servers_cannot_live_in_is_refused_at_once(folder: Path, name: str, why: str) -> None:
    data = folder / name
    data.mkdir(mode=0o711)
    with pytest.raises(embedded.EmbeddedError, match=why):
        embedded.start(data)
    assert list(data.iterdir()) == []
