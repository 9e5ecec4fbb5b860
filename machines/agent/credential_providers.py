"""Where a machine may fetch credentials: what its owner's file allows, and nothing else.

    {"files": "/etc/astra/credentials/{org}/{workspace}",
     "environment": "ASTRA_CREDENTIAL_",
     "commands": {"pass": ["/usr/local/bin/astra-pass", "show"]},
     "vault": {"address": "https://vault:8200", "mount": "secret", "prefix": "astra/{org}/{workspace}",
               "token_file": "/etc/astra/vault-token"}}

`{org}` and `{workspace}` stand for the names of whose credential it is, so that the workspaces of a shared cluster
cannot read each other's. The file is read anew for each fetch. No error repeats anything of a value, nor what a program
printed.
"""

import asyncio
import os
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hvac
import hvac.exceptions
import msgspec
import requests

from machines.agent.spawning import kill, spawn
from machines.orders import CredentialSource

VALUE_BYTES = 1024 * 1024
VAULT_SECONDS = 10
FETCH_SECONDS = 30  # of any provider: a program that hangs, a file server that is away
THREADS = 4
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class NotFetched(Exception):
    """The message is one line, for people who may not see the value."""


class VaultAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token from `token_file` (read each time, so it may be renewed), or an AppRole's login."""

    address: str
    mount: str = "secret"
    prefix: str = ""
    namespace: str = ""
    token_file: str = ""
    role_id_file: str = ""
    secret_id_file: str = ""
    ca_file: str = ""


class Allowed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the machine's owner allows; what is left out is not allowed."""

    files: str = ""
    environment: str = ""
    commands: dict[str, list[str]] = {}
    vault: VaultAccess | None = None


class Providers:
    """`config`: the owner's file; no file allows nothing."""

    def __init__(self, config: Path) -> None:
        self._config = config
        # Threads of their own: a file server that hangs must not keep the agent from reading logs.
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="credentials")

    async def fetch(self, source: CredentialSource) -> bytes:
        """The value. Raises NotFetched."""
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                value = await self._fetch(source)
        except TimeoutError:
            raise NotFetched(f"the provider did not answer within {FETCH_SECONDS} s") from None
        if not value:
            raise NotFetched("it is empty")
        if len(value) > VALUE_BYTES:
            raise NotFetched(f"it is larger than {VALUE_BYTES // 1024} KiB")
        return value

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _fetch(self, source: CredentialSource) -> bytes:
        allowed = self._allowed()
        match source.provider:
            case "file":
                return await self._in_thread(_read_file, allowed, source)
            case "environment":
                return _read_environment(allowed, source)
            case "command":
                return await _run_command(allowed, source)
            case "vault":
                return await self._in_thread(_ask_vault, allowed, source)
        raise NotFetched(f"this machine's agent knows no provider {source.provider}")

    async def _in_thread(self, read: Callable[[Allowed, CredentialSource], bytes], *args: Any) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._threads, read, *args)

    def _allowed(self) -> Allowed:
        try:
            return msgspec.json.decode(self._config.read_bytes(), type=Allowed)
        except FileNotFoundError:
            raise NotFetched(f"this machine allows no credentials: {self._config} does not exist") from None
        except OSError as error:
            raise NotFetched(f"this machine's {self._config} cannot be read: {error.strerror}") from None
        except msgspec.DecodeError as error:
            raise NotFetched(f"this machine's {self._config} is not right: {error}") from None


def _filled(template: str, source: CredentialSource, what: str) -> str:
    if not template:
        raise NotFetched(f"this machine allows no {what} as credentials")
    org, _, workspace = source.place.partition("/")
    return template.replace("{org}", org).replace("{workspace}", workspace)


def _read_file(allowed: Allowed, source: CredentialSource) -> bytes:
    """Links are followed, but not out of the folder."""
    folder = Path(_filled(allowed.files, source, "files"))
    try:
        folder = folder.resolve(strict=True)
        path = (folder / source.reference).resolve(strict=True)
        if not path.is_relative_to(folder):
            raise NotFetched(f"{source.reference} is not in the folder that this machine allows")
        if not path.is_file():
            raise NotFetched(f"{source.reference} is no file")
        with path.open("rb") as file:
            return file.read(VALUE_BYTES + 1)
    except (OSError, RuntimeError, ValueError) as error:  # the second: links in a circle; the last: no path
        raise NotFetched(f"{source.reference}: {getattr(error, 'strerror', None) or 'cannot be read'}") from None


def _read_environment(allowed: Allowed, source: CredentialSource) -> bytes:
    prefix = _filled(allowed.environment, source, "variables of its environment")
    prefix = prefix.replace("-", "_").upper() if "{" in allowed.environment else prefix
    if not _VARIABLE.fullmatch(source.reference) or not source.reference.startswith(prefix):
        raise NotFetched(f"this machine allows variables that begin with {prefix}")
    value = os.environb.get(source.reference.encode())
    if value is None:
        raise NotFetched(f"the agent's environment has no {source.reference}")
    return value


async def _run_command(allowed: Allowed, source: CredentialSource) -> bytes:
    """`name` or `name argument`: the argument is passed as one, and never looks like an option. What the program says
    beside its output is dropped: it may hold a part of a value."""
    name, _, argument = source.reference.partition(" ")
    argv = allowed.commands.get(name)
    if not argv:
        raise NotFetched(f"this machine allows no command {name}")
    if argument.startswith("-"):
        raise NotFetched("the argument of a command may not begin with -")
    org, _, workspace = source.place.partition("/")
    environment = {**os.environ, "ASTRA_ORG": org, "ASTRA_WORKSPACE": workspace, "ASTRA_CREDENTIAL": source.name}
    try:
        process = await spawn([*argv, *([argument] if argument else [])], environment, errors=subprocess.DEVNULL)
    except OSError as error:
        raise NotFetched(f"the command {name} cannot be run: {error.strerror}") from None
    assert process.stdout is not None
    try:
        value = await process.stdout.read(VALUE_BYTES + 1)
        while len(value) <= VALUE_BYTES and (more := await process.stdout.read(VALUE_BYTES + 1)):
            value += more
        code = await process.wait() if len(value) <= VALUE_BYTES else 0
    finally:
        kill(process)
    if code:
        raise NotFetched(f"the command {name} ended with code {code}")
    return value


def _ask_vault(allowed: Allowed, source: CredentialSource) -> bytes:
    """`path` is the secret's keys as a JSON object, `path#key` one of them."""
    if allowed.vault is None:
        raise NotFetched("this machine has no access to a Vault")
    access = allowed.vault
    path, _, key = source.reference.partition("#")
    if ".." in path.split("/"):
        raise NotFetched(f"{path} is no path of a secret")
    prefix = _filled(access.prefix, source, "").strip("/") if access.prefix else ""
    full = "/".join(part for part in (prefix, path.strip("/")) if part)
    try:
        client = _vault_client(access)
        answer = client.secrets.kv.v2.read_secret_version(
            path=full, mount_point=access.mount, raise_on_deleted_version=True
        )
        data = answer["data"]["data"]
    except hvac.exceptions.InvalidPath:
        raise NotFetched(f"Vault has no secret {full}") from None
    except (hvac.exceptions.Forbidden, hvac.exceptions.Unauthorized):
        raise NotFetched(f"Vault denies this machine {full}") from None
    except hvac.exceptions.VaultDown:  # HTTP 503
        raise NotFetched(f"Vault at {access.address} is sealed, or not ready") from None
    except (hvac.exceptions.VaultError, requests.RequestException) as error:
        raise NotFetched(f"Vault at {access.address} does not answer: {type(error).__name__}") from None
    except (KeyError, TypeError, ValueError):
        raise NotFetched(f"Vault's answer for {full} is none of its KV version 2 engine") from None
    except OSError as error:
        raise NotFetched(f"this machine's login to Vault cannot be read: {error.strerror}") from None
    if not key:
        return msgspec.json.encode(data)
    if key not in data:
        raise NotFetched(f"Vault's secret {full} has no key {key}")
    return data[key].encode() if isinstance(data[key], str) else msgspec.json.encode(data[key])


def _vault_client(access: VaultAccess) -> Any:
    client: Any = hvac.Client(
        url=access.address,
        namespace=access.namespace or None,
        verify=access.ca_file or True,
        timeout=VAULT_SECONDS,
        token=_text(access.token_file) if access.token_file else "",
    )
    if access.role_id_file:
        client.auth.approle.login(_text(access.role_id_file), _text(access.secret_id_file))
    return client


def _text(path: str) -> str:
    return Path(path).read_text().strip()
