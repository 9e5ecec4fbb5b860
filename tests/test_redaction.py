"""Values of credentials are on the machine and nowhere else: a whole console with real containers and a private
registry, and then every table, key, file, answer and page looked through for them."""

import asyncio
import base64
import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import redis

from tests.console import Console, eventually, running_console
from tests.engine import Engine
from tests.registry import Registry
from tests.vault import Vault

pytestmark = [pytest.mark.processes, pytest.mark.engine]

VARIABLE, FILE, PASSWORD, WRONG, INHERITED = (f"never-shown-{name}-7f3a" for name in "vfpwi")
VALUES = (VARIABLE, FILE, PASSWORD, WRONG, INHERITED)
PRINTS = 'printf %s "$TOKEN" | sha256sum; sha256sum < /var/secrets/gcs/value; printf %s "$HERE" | sha256sum; '


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    """On a loop and a thread of its own, since the test is not asynchronous."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    started = Registry(login=("robot", PASSWORD))
    asyncio.run_coroutine_threadsafe(started.start(), loop).result(30)
    yield started
    asyncio.run_coroutine_threadsafe(started.stop(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def console(engine: Engine, registry: Registry, tmp_path_factory: Any) -> Iterator[Console]:
    """With all that was done with credentials in it: used, waited for, wrong, at the end of a failed run."""
    kept = tmp_path_factory.mktemp("secrets")
    vault = Vault(secrets={"hf": {"token": VARIABLE}})
    options = ("--runtime", "docker", "--machine-cpus", "4", "--machine-memory", "8Gi")
    environment = {"DOCKER_HOST": engine.url, "STOP_GRACE_SECONDS": "1", "ASTRA_CREDENTIAL_HERE": INHERITED}
    with running_console(*options, env=environment) as running:
        define(running, registry, vault.start(), kept)
        yield running
    vault.stop()


def define(console: Console, registry: Registry, vault: str, kept: Path) -> None:
    server = registry.image.partition("/")[0]
    (kept / "gcs").write_text(FILE)
    (kept / "vault-token").write_text("vault-token")
    (kept / "login").write_text(json.dumps({"username": "robot", "password": PASSWORD, "server": server}))
    wrong = json.dumps({"username": "robot", "password": WRONG, "server": server})
    (kept / "wrong").write_text(wrong)
    allowed = {
        "files": str(kept),
        "environment": "ASTRA_CREDENTIAL_",
        "commands": {"show": ["/bin/cat"]},
        "vault": {"address": vault, "token_file": str(kept / "vault-token")},
    }
    (console.data / "agents" / "local-1" / "credentials.json").write_text(json.dumps(allowed))
    for name, provider, reference in (
        ("hf-token", "vault", "hf"),
        ("gcs-key", "file", "gcs"),
        ("here", "environment", "ASTRA_CREDENTIAL_HERE"),
        ("registry-login", "command", f"show {kept}/login"),
        ("wrong-login", "command", f"show {kept}/wrong"),
    ):
        answer = call(console, "POST", "credentials", {"name": name, "provider": provider, "reference": reference})
        assert answer.status_code == 201, answer.text


def call(console: Console, method: str, path: str, body: object = None) -> httpx.Response:
    ready = console.ready
    place = f"{ready['url']}/api/v1/orgs/{ready['organisation']}/workspaces/{ready['workspace']}/{path}"
    return console.api.request(method, place, json=body)


def template(image: str, login: str = "registry-login") -> dict[str, Any]:
    return {
        "image": image,
        "pull_policy": "Always",
        "restart_policy": "Never",
        "registry_secret_ref": {"external_secret_name": login},
        "secret_refs": [
            {"external_secret_name": "hf-token", "env_vars": {"token": "TOKEN"}},
            {"external_secret_name": "here", "env_vars": {"value": "HERE"}},
            {"external_secret_name": "gcs-key", "mount_path": "/var/secrets/gcs"},
        ],
    }


@pytest.fixture(scope="module")
def used(console: Console, registry: Registry) -> Console:
    """Every value has been where it belongs."""
    image = registry.image
    console.submit("runs", "sh", "-c", PRINTS + "exec sleep 1000", task_template=template(image))
    console.submit("fails", "sh", "-c", PRINTS + "exit 3", task_template=template(image))
    console.submit("denied", "true", task_template=template(image, "wrong-login"))
    console.submit("waits", "true", task_template=template(image, "nobody-has-it"))
    console.wait_for("runs", "Running")
    console.wait_for("fails", "Failed")
    console.wait_for("denied", "Failed")
    sums = "".join(f"{hashlib.sha256(value.encode()).hexdigest()}  -\n" for value in (VARIABLE, FILE, INHERITED))
    eventually(lambda: console.logs("runs-0") == sums)
    assert console.logs("fails-0") == sums
    return console


def spellings(value: str) -> list[bytes]:
    """As it is, and as columns, keys and headers encode bytes. Base64 at each of its three offsets, ends left off."""
    raw = value.encode()
    shifted = [base64.b64encode(bytes(offset) + raw)[4 if offset else 0 : -4] for offset in range(3)]
    return [raw, raw.hex().encode(), *shifted]


NEEDLES = {needle: value for value in VALUES for needle in spellings(value)}


def found_in(content: bytes) -> list[str]:
    return sorted({value for needle, value in NEEDLES.items() if needle in content})


def test_a_search_would_find_a_value_however_it_is_spelled() -> None:
    for value in VALUES:
        for wrapped in (value, base64.b64encode(b"x" + value.encode()).decode(), value.encode().hex()):
            assert found_in(f"before {wrapped} after".encode()) == [value]


def test_the_end_of_a_wrong_login_names_the_credential_and_not_its_value(used: Console) -> None:
    reason = used.task("denied-0")["last_failure"]["reason"]
    assert reason.startswith("ErrImagePull: ")
    assert found_in(reason.encode()) == []
    waiting = used.task("waits-0")["status"]
    sentence = "waiting for registry secret nobody-has-it to be synced to this node"
    assert (waiting["state"], waiting["reason"]) == ("Preparing", sentence)


def test_no_table_holds_a_value(used: Console) -> None:
    services = used.data / "services"
    password = (services / "password").read_text()
    looked_at = 0
    with psycopg.connect(host=str(services), user="astra", password=password, dbname="astra") as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in tables:
            for (row,) in connection.execute(f'SELECT t::text FROM "{table}" t').fetchall():
                looked_at += 1
                assert found_in(row.encode()) == [], table
    assert looked_at > 100


def test_redis_holds_none(used: Console) -> None:
    services = used.data / "services"
    password = (services / "password").read_text()
    looked_at = 0
    for number in range(16):
        with redis.Redis(unix_socket_path=str(services / "redis.sock"), password=password, db=number) as client:
            for key in client.scan_iter():
                looked_at += 1
                assert found_in(repr((key, contents(client, key))).encode()) == [], key
    assert looked_at > 0
    assert found_in((services / "appendonly.aof").read_bytes()) == []


def contents(client: Any, key: bytes) -> object:
    readers = {
        b"string": client.get,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"hash": client.hgetall,
        b"stream": client.xrange,
    }
    kind = client.type(key)
    return readers[kind](key) if kind in readers else None


def test_no_file_of_the_console_or_the_agent_holds_one(used: Console) -> None:
    """Logs of every process, journals, output, PostgreSQL's own files and log of writes."""
    files = [path for path in used.data.rglob("*") if path.is_file() and "binaries" not in path.parts]
    assert {"agent.log", "daphne.log", "celery-worker.log", "journal", "output.log"} <= {path.name for path in files}
    assert [path for path in [*files, used.output] if found_in(path.read_bytes())] == []


def test_no_command_line_and_no_keeper_holds_one(used: Console) -> None:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        assert found_in(line) == []


def test_no_answer_of_the_api_holds_one(used: Console) -> None:
    paths = ["jobs", "tasks?job=runs", "machines", "machines/local-1"]
    for name in ("runs", "fails", "denied", "waits"):
        paths += [f"jobs/{name}", f"tasks/{name}-0", f"tasks/{name}-0/logs?tail=100"]
    for path in paths:
        answer = used.api.get(path)
        assert answer.status_code in (200, 409), path
        assert found_in(answer.content) == [], path
    for path in ("credentials", "credentials/hf-token", "credentials/wrong-login", "jobs"):
        answer = call(used, "GET", path)
        assert answer.status_code == 200, path
        assert found_in(answer.content) == [], path


def test_no_page_holds_one(used: Console) -> None:
    ready = used.ready
    with httpx.Client(base_url=ready["url"], follow_redirects=True, timeout=30) as browser:
        browser.get("/sign-in")
        token = browser.cookies["csrftoken"]
        given = {"username": ready["username"], "password": ready["password"], "csrfmiddlewaretoken": token}
        assert browser.post("/sign-in", data=given).status_code == 200
        place, cluster = f"/o/{ready['organisation']}/w/{ready['workspace']}", ready["cluster"]
        pages = ["/runs?state=all", "/credentials", "/machines", "/machines/local/local-1"]
        pages += [f"/credentials/{name}" for name in ("hf-token", "gcs-key", "registry-login", "wrong-login", "here")]
        for name in ("runs", "fails", "denied", "waits"):
            pages += [f"/jobs/{cluster}/{name}?tab={tab}" for tab in ("workers", "logs", "history")]
            pages += [f"/workers/{cluster}/{name}-0?tab={tab}" for tab in ("log", "history", "started")]
            pages.append(f"/new-run?again={cluster}/{name}")
        for page in pages:
            answer = browser.get(place + page)
            assert answer.status_code == 200, page
            assert found_in(answer.content) == [], page
        started = browser.get(f"{place}/workers/{cluster}/runs-0?tab=started").text
    assert all(name in started for name in ("hf-token", "TOKEN", "gcs-key", "/var/secrets/gcs", "registry-login"))


def test_a_containers_labels_hold_none_its_environment_does_and_its_files_go_with_it(
    used: Console, engine: Engine
) -> None:
    """What the engine shows to whoever may ask it: said so in docs/credentials.md."""
    (name,) = engine.docker("ps", "--filter", "label=astra.worker-name=runs-0", "--format", "{{.Names}}").split()
    (shown,) = json.loads(engine.docker("inspect", name))
    environment = shown["Config"].pop("Env")
    assert found_in(json.dumps(environment).encode()) == sorted([VARIABLE, INHERITED])
    assert found_in(json.dumps(shown).encode()) == []
    (source,) = [mount["Source"] for mount in shown["Mounts"]]
    assert found_in(Path(source, "value").read_bytes()) == [FILE]
    assert subprocess.run(["stat", "-c", "%a", str(Path(source).parent.parent)], capture_output=True).stdout == b"700\n"
    assert used.api.delete("jobs/runs").status_code == 204
    eventually(lambda: not os.path.exists(source))
