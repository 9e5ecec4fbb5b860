"""What a workspace keeps, while two people at once save and remove the same thing, or the last that it may have."""

import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime

import pytest
from django.db import connection

from astraconsole.errors import AstraError, Conflict, NotFound
from astraconsole.tenancy.models import AuditEvent
from astraconsole.tenancy.permissions import Role
from astraconsole.tenancy.queries import Access
from machines import credentials, volumes
from machines.models import Cluster, Credential, Volume
from machines.orders import DataKind
from runs.models import Schedule, Template
from runs.saved import TemplateFields, read_schedule
from runs.services import schedules, templates
from tests import builders

NOW = datetime.fromisoformat("2026-05-04T08:59:30+00:00")
Save = Callable[[Access, str], object]


def save_template(access: Access, name: str) -> Template:
    return templates.save_template(access, TemplateFields(name=name, description="", spec="{}"), NOW)[0]


def save_schedule(access: Access, name: str) -> Schedule:
    cluster = Cluster.objects.get().slug
    body = {"name": name, "cluster": cluster, "cron": "0 * * * *", "spec": builders.body()["spec"]}
    return schedules.save_schedule(access, read_schedule(body), NOW)[0]


def save_credential(access: Access, name: str) -> Credential:
    return credentials.save_credential(access, name, "file", "hf/token", NOW)[0]


def create_volume(access: Access, name: str) -> Volume:
    given = {"name": name, "kind": "copy", "source": "s3://data/x"}
    return volumes.create_volume(access, DataKind.DRIVE, given, NOW)


def workspace() -> Access:
    access = builders.access(builders.workspace(), Role.ADMIN)
    builders.cluster(access.workspace)
    return access


def at_once(work: Callable[[int], object], people: int) -> Counter[str]:
    """What each of so many at the same time gets: "done", or the code of its refusal. Anything else is raised."""
    begin, told, faults = threading.Barrier(people), Counter[str](), []

    def one(number: int) -> None:
        begin.wait()
        try:
            work(number)
            told["done"] += 1
        except AstraError as error:
            told[error.code] += 1
        except Exception as error:
            faults.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(people)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    return told


@pytest.mark.parametrize("save", [save_template, save_schedule, save_credential, create_volume])
def test_what_somebody_else_has_removed_meanwhile_is_not_found_and_told_once(db: None, save: Save) -> None:
    access = workspace()
    item = save(access, "same")
    remove = {
        Template: templates.remove_template,
        Schedule: schedules.remove_schedule,
        Credential: credentials.remove_credential,
        Volume: volumes.remove_volume,
    }[type(item)]
    (again,) = type(item).objects.all()
    remove(access, item, NOW)
    with pytest.raises(NotFound, match="the workspace has no "):
        remove(access, again, NOW)
    assert AuditEvent.objects.filter(state="Removed").count() == 1


def test_a_schedule_that_was_removed_meanwhile_neither_runs_nor_changes(db: None) -> None:
    access = workspace()
    schedule = save_schedule(access, "nightly")
    Schedule.objects.all().delete()
    with pytest.raises(NotFound):
        schedules.run_now(access, schedule, NOW)
    with pytest.raises(NotFound):
        schedules.set_enabled(access, schedule, False, NOW)


def test_enabling_counts_from_the_timetable_that_somebody_else_has_just_saved(db: None) -> None:
    access = workspace()
    seen = save_schedule(access, "nightly")
    schedules.set_enabled(access, seen, False, NOW)
    Schedule.objects.update(cron="30 12 * * *")
    schedules.set_enabled(access, seen, True, NOW)
    assert Schedule.objects.get().next_at == NOW.replace(hour=12, minute=30, second=0)


@pytest.mark.django_db(transaction=True)
def test_a_schedule_is_run_replaced_and_removed_by_many_at_once() -> None:
    access = workspace()
    schedule = save_schedule(access, "nightly")

    def work(number: int) -> None:
        if number % 3 == 0:
            schedules.run_now(access, schedule, NOW.replace(second=number))
        elif number % 3 == 1:
            schedules.remove_schedule(access, schedule, NOW)
        else:
            save_schedule(access, "nightly")

    told = at_once(work, 9)
    assert told["done"] + told["NOT_FOUND"] == 9
    builders.check_invariants()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("save", "place", "limit"),
    [
        (save_template, templates, "SAVED_MAX"),
        (save_schedule, templates, "SAVED_MAX"),
        (save_credential, credentials, "CREDENTIALS_MAX"),
        (create_volume, volumes, "VOLUMES_MAX"),
    ],
)
def test_a_workspace_never_has_more_than_it_may_and_what_it_has_can_be_replaced(
    monkeypatch: pytest.MonkeyPatch, save: Save, place: object, limit: str
) -> None:
    monkeypatch.setattr(place, limit, 3)
    access = workspace()
    assert at_once(lambda number: save(access, f"item-{number}"), 6) == {"done": 3, "CONFLICT": 3}
    model = {"SAVED_MAX": Template if save is save_template else Schedule, "CREDENTIALS_MAX": Credential}.get(
        limit, Volume
    )
    names = set(model.objects.values_list("name", flat=True))
    assert len(names) == 3
    with pytest.raises(Conflict, match=r"the workspace has 3 .*, the most it can have"):
        save(access, "more")
    if model is not Volume:
        save(access, names.pop())
