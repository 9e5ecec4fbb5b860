"""Schedules: what comes of a time that is due, whoever notices it, and what one bad schedule does to others."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from astraconsole.errors import Forbidden, NotFound, ValidationError
from astraconsole.tenancy.models import Membership
from astraconsole.tenancy.permissions import Role
from astraconsole.tenancy.queries import Access
from machines.models import Cluster
from runs import saved_queries
from runs.models import Firing, Run, Schedule
from runs.saved import read_schedule
from runs.services import schedules
from runs.state_machine import RunState
from tests import builders

T0 = datetime(2026, 5, 4, 8, 59, 30, tzinfo=UTC)
NINE = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)


@pytest.fixture
def place(db: None) -> tuple[Access, Cluster]:
    workspace = builders.workspace()
    return builders.access(workspace), builders.cluster(workspace)


def save(place: tuple[Access, Cluster], name: str = "nightly", now: datetime = T0, **fields: Any) -> Schedule:
    access, cluster = place
    body = {"name": name, "cluster": cluster.slug, "cron": "0 * * * *", "spec": builders.body()["spec"], **fields}
    return schedules.save_schedule(access, read_schedule(body), now)[0]


def outcomes(schedule: Schedule) -> list[tuple[str, str | None, str]]:
    """(outcome, run, message), oldest first."""
    firings = saved_queries.firings_of(schedule)[::-1]
    return [(firing.outcome, firing.run and firing.run.name, firing.message) for firing in firings]


def at(hour: int, minute: int = 0) -> datetime:
    return NINE.replace(hour=hour, minute=minute)


def test_a_schedule_that_is_due_starts_a_run_of_its_own_name_and_number(place: tuple[Access, Cluster]) -> None:
    schedule = save(place)
    assert schedules.fire_due(T0) == 0
    for hour in (9, 10):
        assert schedules.fire_due(at(hour)) == 1
        assert schedules.fire_due(at(hour, 1)) == 0
        builders.workers(Run.objects.latest("id"))
        Run.objects.update(state=RunState.COMPLETED)
    assert outcomes(schedule) == [("Started", "nightly-1", ""), ("Started", "nightly-2", "")]
    run = Run.objects.get(name="nightly-2")
    assert (run.created_by, run.labels) == (place[0].user, {"schedule": "nightly"})
    schedule.refresh_from_db()
    assert schedule.next_at == at(11)


@pytest.mark.parametrize(
    ("overlap", "second", "states"),
    [
        ("Skip", ("Skipped", None, "nightly-1 has not ended"), ["Pending"]),
        ("Allow", ("Started", "nightly-2", ""), ["Pending", "Pending"]),
        ("Replace", ("Started", "nightly-2", ""), ["Cancelled", "Pending"]),
    ],
)
def test_a_run_that_has_not_ended_is_met_as_the_schedule_says(
    place: tuple[Access, Cluster], overlap: str, second: tuple[str, str | None, str], states: list[str]
) -> None:
    schedule = save(place, overlap=overlap)
    schedules.fire_due(at(9))
    schedules.fire_due(at(10))
    assert outcomes(schedule)[1] == second
    assert list(Run.objects.order_by("id").values_list("state", flat=True)) == states
    builders.check_invariants()


def test_times_that_nobody_noticed_are_not_made_up_for(place: tuple[Access, Cluster]) -> None:
    schedule = save(place)
    schedules.fire_due(at(15, 20))
    [firing] = Firing.objects.all()
    assert (firing.due_at, firing.message) == (at(15), "Earlier times were missed")
    schedule.refresh_from_db()
    assert schedule.next_at == at(16)


def test_one_bad_schedule_shows_its_error_and_the_others_go_on(place: tuple[Access, Cluster]) -> None:
    forbidden = save(place, "forbidden")
    Schedule.objects.filter(pk=forbidden.pk).update(spec='{"task_template": {}, "replicas": 2}')
    broken = save(place, "broken")
    Schedule.objects.filter(pk=broken.pk).update(spec="{")
    endless = save(place, "endless")
    Schedule.objects.filter(pk=endless.pk).update(cron="99 * * * *")
    good = save(place, "good")
    schedules.fire_due(at(9))
    for schedule in (forbidden, broken, endless, good):
        schedule.refresh_from_db()
    assert forbidden.error == "UNKNOWN_FIELD: fields this API does not know: spec.replicas"
    assert (broken.error, broken.next_at) == ("unexpected: JSONDecodeError", at(10))
    assert endless.next_at is None
    assert "minute" in endless.error
    assert (good.error, outcomes(good)) == ("", [("Started", "good-1", "")])
    assert schedules.fire_due(at(9, 1)) == 0


def test_who_may_no_longer_start_runs_starts_none(place: tuple[Access, Cluster]) -> None:
    schedule = save(place)
    Membership.objects.filter(user=place[0].user).update(role=Role.VIEWER)
    schedules.fire_due(at(9))
    Membership.objects.filter(user=place[0].user).delete()
    schedules.fire_due(at(10))
    told = [message for _, _, message in outcomes(schedule)]
    assert told == [
        "FORBIDDEN: viewers can read runs but not start, stop or delete them",
        "FORBIDDEN: who saved it is no member of the workspace any more: save it again",
    ]
    assert not Run.objects.exists()


def test_old_firings_are_forgotten_but_for_those_whose_run_goes_on(
    place: tuple[Access, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "FIRINGS_KEPT", 2)
    schedule = save(place)
    for hour in range(9, 15):
        schedules.fire_due(at(hour))
    assert [outcome for outcome, _, _ in outcomes(schedule)] == ["Started", "Skipped", "Skipped", "Skipped"]
    Run.objects.update(state=RunState.COMPLETED)
    for hour in range(15, 18):
        schedules.fire_due(at(hour))
    assert "nightly-1" not in [run for _, run, _ in outcomes(schedule)]


def test_a_name_that_is_taken_is_passed_over(place: tuple[Access, Cluster]) -> None:
    builders.submit(*place, "nightly-1")
    schedule = save(place)
    schedules.fire_due(at(9))
    assert outcomes(schedule) == [("Started", "nightly-2", "")]


def test_a_run_by_hand_is_beside_the_timetable(place: tuple[Access, Cluster]) -> None:
    schedule = save(place, enabled=False)
    assert schedule.next_at is None
    assert schedules.run_now(place[0], schedule, T0).run == Run.objects.get(name="nightly-1")
    schedules.set_enabled(place[0], schedule, True, T0)
    schedules.fire_due(at(9))
    assert [outcome for outcome, _, _ in outcomes(schedule)] == ["Started", "Skipped"]
    schedules.set_enabled(place[0], schedule, False, at(9))
    assert schedules.fire_due(at(12)) == 0


def test_saving_under_the_name_replaces_and_goes_on_counting(place: tuple[Access, Cluster]) -> None:
    save(place, overlap="Allow")
    schedules.fire_due(at(9))
    replaced = save(place, cron="30 * * * *", overlap="Allow", now=at(9))
    assert (replaced.next_at, Schedule.objects.count()) == (at(9, 30), 1)
    schedules.fire_due(at(9, 30))
    assert outcomes(replaced)[-1] == ("Started", "nightly-2", "")


def test_what_a_run_could_not_be_is_refused_when_saved(place: tuple[Access, Cluster]) -> None:
    with pytest.raises(ValidationError, match="task_template"):
        save(place, spec={"machines": 1})
    with pytest.raises(NotFound):
        save(place, cluster="elsewhere")
    with pytest.raises(ValidationError) as broken:
        save(place, cron="often", zone="Mars", overlap="Perhaps", enabled="yes")
    assert [item["field"] for item in broken.value.detail] == ["cron", "zone", "overlap", "enabled"]
    viewer = builders.access(place[0].workspace, Role.VIEWER)
    with pytest.raises(Forbidden):
        save((viewer, place[1]))


@pytest.mark.django_db(transaction=True)
def test_a_time_counts_once_however_many_notice_it_at_once() -> None:
    workspace = builders.workspace()
    place = builders.access(workspace), builders.cluster(workspace)
    made = [save(place, f"s{number}", overlap="Allow") for number in range(6)]
    hours = [at(9) + timedelta(hours=hour) for hour in range(3)]
    begin = threading.Barrier(4)

    def notice() -> None:
        begin.wait()
        for now in hours:
            for schedule in made:
                schedules.fire(schedule.pk, now)
            schedules.fire_due(now)
        connection.close()

    threads = [threading.Thread(target=notice) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    schedules.fire_due(hours[-1])
    for schedule in made:
        due = [firing.due_at for firing in saved_queries.firings_of(schedule)]
        assert len(due) == len(set(due)) >= 1
        names = [name for _, name, _ in outcomes(schedule)]
        assert names == [f"{schedule.name}-{number + 1}" for number in range(len(due))]
        schedule.refresh_from_db()
        assert schedule.next_at == at(12)


def test_what_is_due_soon_is_known_ahead_and_what_is_due_is_not_soon(place: tuple[Access, Cluster]) -> None:
    schedule = save(place)
    save(place, "off", enabled=False)
    soon = saved_queries.schedule_ids_due_before
    assert soon(T0, NINE - timedelta(seconds=1), 10) == []
    assert soon(T0, NINE, 10) == [(schedule.pk, NINE)]
    assert soon(NINE, at(9, 30), 10) == []
