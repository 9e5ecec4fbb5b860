"""Engines: refused without an image, their part of what a worker asks for, and what their ends lead to."""

from typing import Any

import msgspec
import pytest

from astraconsole.errors import Conflict, ValidationError
from astraconsole.tenancy.permissions import Role
from machines.models import Assignment, Machine
from machines.orders import DataKind, EngineUse, Order, VolumeUse
from machines.protocol import EndReason, Phase
from machines.volumes import create_volume
from runs.models import Run
from runs.scheduling.dry_run import dry_run
from runs.services.volumes import delete_volume
from runs.spec import parse_run
from tests import builders as make
from tests.builders import GIB, T0, after

pytestmark = pytest.mark.django_db
ENGINE = {"model": "llama"}


@pytest.fixture
def configured(settings: Any) -> Any:
    settings.ENGINE_IMAGE = "vllm/vllm-openai:v1"
    settings.ENGINE_ARGS = ["--port", "{port}"]
    settings.ENGINE_SHARE = 0.75
    return settings


def test_without_an_image_a_run_with_an_engine_is_refused_at_every_door() -> None:
    editor = make.access(make.workspace())
    east = make.cluster(editor.workspace)
    for door in (make.submit, lambda *who, **run: dry_run(editor, east.slug, parse_run(make.body(**run)), T0)):
        with pytest.raises(ValidationError) as refused:
            door(editor, east, engine=ENGINE)
        (only,) = refused.value.detail
        assert only["field"] == "spec.engine"
        assert only["rule"] == "cannot be served: this console has no engine (its setting ENGINE_IMAGE is empty)"
    assert not Run.objects.exists()


def order_of(on: Machine, **run: Any) -> Order:
    editor = make.access(on.cluster.namespaces.get().workspace)
    worker = make.workers(make.submit(editor, on.cluster, **run))[0]
    make.place(worker, on, range(run.get("gpus", 0)))
    return msgspec.msgpack.decode(Assignment.objects.get().order, type=Order)


def test_the_engine_gets_its_share_of_the_workers_cores_and_memory(configured: Any) -> None:
    workspace = make.workspace()
    machine = make.machine(make.cluster(workspace))
    order = order_of(machine, cpu=2, memory=4 * GIB, engine=ENGINE)
    assert (order.cpu_milli, order.memory_bytes) == (500, GIB)
    assert order.engine == EngineUse(
        VolumeUse(DataKind.MODEL, "llama", "/model", True),
        "vllm/vllm-openai:v1",
        args=["--port", "{port}"],
        cpu_milli=1500,
        memory_bytes=3 * GIB,
    )


def test_an_engine_that_ended_is_the_workers_reason_and_it_restarts(configured: Any) -> None:
    editor = make.access(make.workspace())
    machine = make.machine(make.cluster(editor.workspace))
    run = make.submit(editor, machine.cluster, engine=ENGINE)
    (worker,) = make.workers(run)
    attempt = make.place(worker, machine)
    waiting = "Waiting for the engine to serve llama"
    make.report(attempt, (Phase.PREPARING, 1), at=after(1), waiting=waiting)
    worker.refresh_from_db()
    assert (worker.state, worker.reason) == ("Preparing", waiting)
    why = "The engine ended: Exited with code 1"
    make.report_end(attempt, exit_code=143, reason=EndReason.ENGINE_ENDED, message=why, log_tail="x\n", at=after(9))
    worker.refresh_from_db()
    assert (worker.state, worker.reason, worker.last_failure["reason"]) == ("Restarting", why, why)


def test_a_model_that_an_engine_serves_is_not_removed_under_it(configured: Any) -> None:
    admin = make.access(make.workspace(), Role.ADMIN)
    east = make.cluster(admin.workspace)
    create_volume(admin, DataKind.MODEL, {"name": "llama", "kind": "folder", "source": "/srv/llama"}, T0)
    make.submit(admin, east, "chat", engine=ENGINE)
    make.submit(admin, east, "other", engine={"model": "mistral"})
    make.submit(admin, east, "plain")
    with pytest.raises(Conflict, match=r"llama is used by runs in progress: chat$"):
        delete_volume(admin, DataKind.MODEL, "llama")
