"""Where a machine may fetch credentials: what its owner's file allows, and nothing else."""

import json

import pytest

from machines.agent.credential_providers import NotFetched, Providers
from machines.orders import CredentialSource
from tests.agent.agents import eventually
from tests.console import processes_of
from tests.vault import Vault


def source(provider: str, reference: str, place: str = "acme/vision") -> CredentialSource:
    return CredentialSource("a" * 32, 1, place, "hf-token", provider, reference)


@pytest.fixture
def machine(tmp_path):
    """Fetches by an owner's file of these settings."""
    made: list[Providers] = []

    def fetch(provider: str, reference: str, place: str = "acme/vision", **allowed: object):
        (tmp_path / "credentials.json").write_text(json.dumps(allowed))
        providers = Providers(tmp_path / "credentials.json")
        made.append(providers)
        return providers.fetch(source(provider, reference, place))

    yield fetch
    for providers in made:
        providers.close()


async def refusal(fetching) -> str:
    with pytest.raises(NotFetched) as refused:
        await fetching
    return str(refused.value)


# ---- the owner's file ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "reference", "said"),
    [
        ("file", "token", "this machine allows no files as credentials"),
        ("environment", "TOKEN", "this machine allows no variables of its environment as credentials"),
        ("command", "pass x", "this machine allows no command pass"),
        ("vault", "x", "this machine has no access to a Vault"),
        ("telepathy", "x", "this machine's agent knows no provider telepathy"),
    ],
)
async def test_what_the_owner_does_not_allow_is_refused(machine, provider, reference, said):
    assert await refusal(machine(provider, reference)) == said


async def test_without_the_owners_file_nothing_is_allowed(tmp_path):
    providers = Providers(tmp_path / "credentials.json")
    assert "does not exist" in await refusal(providers.fetch(source("file", "token")))
    (tmp_path / "credentials.json").write_text('{"file": "/"}')
    assert "unknown field `file`" in await refusal(providers.fetch(source("file", "token")))
    providers.close()


# ---- files -----------------------------------------------------------------------------------------------------------


async def test_a_file_is_read_below_the_folder_of_its_workspace(machine, tmp_path):
    for place in ("acme/vision", "acme/nlp"):
        folder = tmp_path / "secrets" / place
        folder.mkdir(parents=True)
        (folder / "token").write_text(f"of {place}")
    files = f"{tmp_path}/secrets/{{org}}/{{workspace}}"
    assert await machine("file", "token", files=files) == b"of acme/vision"
    assert await machine("file", "token", "acme/nlp", files=files) == b"of acme/nlp"


async def test_no_path_leads_out_of_the_folder(machine, tmp_path):
    folder = tmp_path / "allowed"
    folder.mkdir()
    (tmp_path / "outside").write_text("not yours")
    (folder / "link").symlink_to("../outside")
    (folder / "inside").symlink_to("target")
    (folder / "target").write_text("yours")
    (folder / "loop").symlink_to("loop")
    for reference in ("link", "../outside", "/etc/hostname", str(tmp_path / "outside"), "a/../../outside"):
        assert "not yours" not in await refusal(machine("file", reference, files=str(folder)))
    assert await machine("file", "inside", files=str(folder)) == b"yours"
    assert await refusal(machine("file", "absent", files=str(folder))) == "absent: No such file or directory"
    assert await refusal(machine("file", ".", files=str(folder))) == ". is no file"
    assert await refusal(machine("file", "loop", files=str(folder)))
    assert await refusal(machine("file", "a\0b", files=str(folder)))


async def test_what_is_empty_or_too_large_is_no_credential(machine, tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "large").write_bytes(b"x" * (1024 * 1024 + 1))
    assert await refusal(machine("file", "empty", files=str(tmp_path))) == "it is empty"
    assert await refusal(machine("file", "large", files=str(tmp_path))) == "it is larger than 1024 KiB"


# ---- the environment -------------------------------------------------------------------------------------------------


async def test_a_variable_is_read_only_with_the_allowed_beginning(machine, monkeypatch):
    monkeypatch.setenv("ASTRA_CREDENTIAL_HF", "hf_1")
    monkeypatch.setenv("ACME_MY_VISION_HF", "of the workspace")
    assert await machine("environment", "ASTRA_CREDENTIAL_HF", environment="ASTRA_CREDENTIAL_") == b"hf_1"
    assert "begin with ASTRA_CREDENTIAL_" in await refusal(
        machine("environment", "PATH", environment="ASTRA_CREDENTIAL_")
    )
    assert await refusal(machine("environment", "ASTRA_CREDENTIAL_NO", environment="ASTRA_CREDENTIAL_")) == (
        "the agent's environment has no ASTRA_CREDENTIAL_NO"
    )
    own = {"environment": "{org}_{workspace}_"}
    assert await machine("environment", "ACME_MY_VISION_HF", "acme/my-vision", **own) == b"of the workspace"
    assert await refusal(machine("environment", "ACME_MY_VISION_HF", "acme/nlp", **own))


# ---- programs --------------------------------------------------------------------------------------------------------


async def test_a_program_gets_its_argument_as_one_and_is_told_for_whom(machine):
    script = 'printf "%s|%s|%s|%s" "$#" "$1" "$ASTRA_ORG/$ASTRA_WORKSPACE" "$ASTRA_CREDENTIAL"'
    commands = {"show": ["/bin/sh", "-c", script, "sh"]}
    value = await machine("command", "show gpu/$(id) ;x", commands=commands)
    assert value == b"1|gpu/$(id) ;x|acme/vision|hf-token"


async def test_a_program_that_fails_tells_its_code_and_nothing_that_it_printed(machine):
    commands = {"broken": ["/bin/sh", "-c", "echo secret; echo secret >&2; exit 3"], "none": ["/no/such/program"]}
    assert await refusal(machine("command", "broken", commands=commands)) == "the command broken ended with code 3"
    assert "cannot be run" in await refusal(machine("command", "none", commands=commands))
    assert "may not begin with -" in await refusal(machine("command", "broken --help", commands=commands))


async def test_a_program_that_never_ends_is_given_up(machine, monkeypatch, tmp_path):
    monkeypatch.setattr("machines.agent.credential_providers.FETCH_SECONDS", 0.3)
    commands = {"hangs": ["/bin/sh", "-c", f": {tmp_path}; (: {tmp_path}; sleep 1000; :) & wait"]}
    assert "did not answer within" in await refusal(machine("command", "hangs", commands=commands))
    await eventually(lambda: processes_of(tmp_path, parent=-1) == [])


async def test_endless_output_is_cut_off(machine):
    commands = {"yes": ["/bin/sh", "-c", "exec yes"]}
    assert await refusal(machine("command", "yes", commands=commands)) == "it is larger than 1024 KiB"


# ---- Vault (a stand-in of its HTTP API) ------------------------------------------------------------------------------


@pytest.fixture
def vault():
    server = Vault()
    server.address = server.start()
    yield server
    server.stop()


async def test_vault_gives_the_keys_of_a_secret_or_one_of_them(machine, vault, tmp_path):
    (tmp_path / "token").write_text("vault-token\n")
    access = {"address": vault.address, "token_file": str(tmp_path / "token"), "prefix": "astra/{org}/{workspace}"}
    vault.secrets = {"astra/acme/vision/hf": {"token": "hf_1", "n": 1}, "astra/acme/nlp/hf": {"token": "other"}}
    assert json.loads(await machine("vault", "hf", vault=access)) == {"token": "hf_1", "n": 1}
    assert await machine("vault", "hf#token", vault=access) == b"hf_1"
    assert await machine("vault", "hf#token", "acme/nlp", vault=access) == b"other"
    assert await refusal(machine("vault", "hf#tokem", vault=access)) == (
        "Vault's secret astra/acme/vision/hf has no key tokem"
    )
    assert await refusal(machine("vault", "absent", vault=access)) == "Vault has no secret astra/acme/vision/absent"
    assert await refusal(machine("vault", "../nlp/hf", vault=access)) == "../nlp/hf is no path of a secret"


async def test_vault_that_denies_or_is_away_is_told_apart(machine, vault, tmp_path):
    vault.secrets = {"hf": {"token": "hf_1"}}
    (tmp_path / "token").write_text("another token")
    access = {"address": vault.address, "token_file": str(tmp_path / "token")}
    assert await refusal(machine("vault", "hf", vault=access)) == "Vault denies this machine hf"
    (tmp_path / "token").write_text("vault-token")
    vault.sealed = True
    assert "is sealed, or not ready" in await refusal(machine("vault", "hf", vault=access))
    away = {**access, "address": "http://127.0.0.1:1"}
    assert await refusal(machine("vault", "hf", vault=away)) == (
        "Vault at http://127.0.0.1:1 does not answer: ConnectionError"
    )
    missing = {**access, "token_file": "/no/such/file"}
    assert "login to Vault cannot be read" in await refusal(machine("vault", "hf", vault=missing))


async def test_vault_knows_a_machine_by_its_role(machine, vault, tmp_path):
    vault.secrets = {"hf": {"token": "hf_1"}}
    (tmp_path / "role").write_text("role")
    (tmp_path / "secret").write_text("role-secret")
    files = {"role_id_file": str(tmp_path / "role"), "secret_id_file": str(tmp_path / "secret")}
    assert await machine("vault", "hf#token", vault={"address": vault.address, **files}) == b"hf_1"
