"""The engine that serves a model beside each worker of a run: what the console's settings say of it."""

from django.conf import settings

from astraconsole.errors import ValidationError
from machines.orders import DataKind, EngineUse, VolumeUse
from runs.spec import RunSpec
from runs.spec_rules import MODEL_PATH


def refuse_unserved(spec: RunSpec) -> None:
    """Raises ValidationError for a run that asks for an engine where none is configured."""
    if spec.engine is not None and not settings.ENGINE_IMAGE:
        rule = "cannot be served: this console has no engine (its setting ENGINE_IMAGE is empty)"
        raise ValidationError(f"spec.engine {rule}", [{"field": "spec.engine", "rule": rule}])


def use_of(spec: RunSpec, cpu_milli: int, memory_bytes: int) -> EngineUse | None:
    """Beside a worker that may use so much in all, of which the engine gets its share. 0: no limit."""
    if spec.engine is None:
        return None
    return EngineUse(
        model=VolumeUse(DataKind.MODEL, spec.engine.model, MODEL_PATH, read_only=True),
        image=settings.ENGINE_IMAGE,
        command=settings.ENGINE_COMMAND or None,
        args=settings.ENGINE_ARGS,
        health_path=settings.ENGINE_HEALTH_PATH,
        start_seconds=settings.ENGINE_START_SECONDS,
        cpu_milli=round(cpu_milli * settings.ENGINE_SHARE),
        memory_bytes=round(memory_bytes * settings.ENGINE_SHARE),
    )
