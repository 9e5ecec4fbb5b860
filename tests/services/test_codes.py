"""Code that comes with runs: kept once, handed to the machines that need it and to no others, and let go."""

import base64
import hashlib
from datetime import timedelta
from typing import Any

import pytest

from astraconsole.errors import NotFound, ValidationError
from runs.models import Code
from runs.services import codes
from runs.services.deleting import delete_run
from runs.spec import RunSpec, load_spec
from tests import archives, builders
from tests.builders import T0, after

PACKED = archives.packed({"train.py": "print(1)"})
DIGEST = hashlib.sha256(PACKED).hexdigest()


@pytest.fixture
def place(db: None) -> Any:
    workspace = builders.workspace()
    return builders.access(workspace), builders.cluster(workspace)


def spec(code: object) -> RunSpec:
    return load_spec({**builders.body()["spec"], "code": code})


def packed_spec() -> RunSpec:
    return spec(base64.b64encode(PACKED).decode())


def test_a_specification_keeps_the_digest_and_the_size_only(place: Any) -> None:
    access, _ = place
    kept, code_id = codes.keep(access, packed_spec(), T0)
    assert kept.stored()["code"] == {"sha256": DIGEST, "size_bytes": len(PACKED)}
    assert bytes(Code.objects.get(pk=code_id).packed) == PACKED


def test_the_same_code_is_kept_once_and_found_by_its_digest_in_its_workspace_alone(place: Any) -> None:
    access, _ = place
    _, first = codes.keep(access, packed_spec(), T0)
    _, again = codes.keep(access, packed_spec(), T0)
    kept, named = codes.keep(access, spec({"sha256": DIGEST, "size_bytes": 7}), T0)
    assert first == again == named
    assert kept.code is not None
    assert kept.code.size_bytes == len(PACKED)
    stranger = builders.access(builders.workspace())
    with pytest.raises(ValidationError) as caught:
        codes.keep(stranger, spec({"sha256": DIGEST}), T0)
    assert caught.value.detail[0]["field"] == "spec.code.sha256"


def with_code(access: Any, cluster: Any) -> Any:
    run = builders.submit(access, cluster)
    _, run.code_id = codes.keep(access, packed_spec(), T0)
    run.save(update_fields=["code"])
    return run


def test_only_the_machine_of_a_live_attempt_gets_the_code(place: Any) -> None:
    access, cluster = place
    machine, other = builders.machine(cluster), builders.machine(cluster)
    run = with_code(access, cluster)
    attempt = builders.place(builders.workers(run)[0], machine)
    assert attempt is not None
    assert codes.packed_for(machine.pk, attempt.uid) == PACKED
    with pytest.raises(NotFound):
        codes.packed_for(other.pk, attempt.uid)
    attempt.released_at = T0
    attempt.save()
    with pytest.raises(NotFound):
        codes.packed_for(machine.pk, attempt.uid)


def test_code_goes_an_hour_after_the_last_run_that_has_it_was_deleted(place: Any) -> None:
    access, cluster = place
    first, second = with_code(access, cluster), with_code(access, cluster)
    delete_run(access, first, after(1))
    codes.drop_unused(T0 + timedelta(hours=2))
    assert Code.objects.count() == 1
    delete_run(access, second, after(1))
    codes.drop_unused(after(60))
    assert Code.objects.count() == 1
    codes.drop_unused(T0 + timedelta(hours=2))
    assert not Code.objects.exists()
    second.refresh_from_db()
    assert second.code_id is None
