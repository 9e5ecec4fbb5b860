"""Which runs in progress name a credential, a drive or a model of their workspace, and who waits for one."""

from django.db.models import BooleanField
from django.db.models.expressions import RawSQL

from astraconsole.tenancy.queries import Access
from runs.models import ACTIVE, Run, Worker
from runs.state_machine import RunState, WorkerState

# Wherever a template names one: the run's, or a group's overrides.
_NAMES_CREDENTIAL = """
(jsonb_path_exists(spec, '$.**.secret_refs[*] ? (@.external_secret_name == $name)', jsonb_build_object('name', %s))
OR jsonb_path_exists(spec, '$.**.registry_secret_ref ? (@.external_secret_name == $name)',
    jsonb_build_object('name', %s)))
"""


def runs_using_credential(access: Access, name: str) -> list[str]:
    """Names of the workspace's runs in progress whose specification asks for this credential."""
    in_progress = Run.objects.filter(ACTIVE, workspace=access.workspace)
    uses = RawSQL(_NAMES_CREDENTIAL, (name, name), output_field=BooleanField())
    return list(in_progress.alias(uses=uses).filter(uses=True).order_by("name").values_list("name", flat=True))


# In the run's template and in those of its groups.
_NAMES_VOLUME = {
    "drive": "jsonb_path_exists(spec, '$.**.datavolume_refs[*] ? (@.name == $name)', jsonb_build_object('name', %s))",
    "model": """jsonb_path_exists(spec,
        '$ ? (exists($.**.model_refs[*] ? (@.name == $name)) || $.engine.model == $name)',
        jsonb_build_object('name', %s))""",
}


def runs_using_volume(access: Access, kind: str, name: str) -> list[str]:
    """Names of the workspace's runs in progress that need this drive or model."""
    in_progress = Run.objects.filter(ACTIVE, workspace=access.workspace)
    uses = RawSQL(_NAMES_VOLUME[kind], (name,), output_field=BooleanField())
    return list(in_progress.alias(uses=uses).filter(uses=True).order_by("name").values_list("name", flat=True))


def held_up(run: Run) -> Worker | None:
    """Of a run that starts: the first worker whose machine waits for something. One query, or none."""
    if run.state != RunState.STARTING:
        return None
    preparing = Worker.objects.filter(run=run, state=WorkerState.PREPARING, reason__istartswith="waiting for ")
    return preparing.order_by("rank").first()
