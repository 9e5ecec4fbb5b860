"""Wakes and the tasks they wake: coalesced, not lost while Redis lives, in nobody's way when it does not."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from django.conf import settings

from astraconsole import events
from astraconsole.celery import app
from machines.models import Liveness, Machine
from runs import tasks
from tests import builders as make
from tests.builders import after

CLUSTER = 990_001  # of no database


@pytest.fixture
def queue() -> Iterator[redis.Redis]:
    """Redis, with nothing queued or counted."""
    client = redis.Redis.from_url(settings.REDIS_URL)
    client.flushdb()
    yield client
    client.flushdb()


def queued(client: redis.Redis) -> int:
    return client.llen(app.conf.task_default_queue)


def test_a_thousand_wakes_queue_one_task(queue: redis.Redis) -> None:
    for _ in range(1000):
        events.wake_now("schedule", CLUSTER)
    assert queued(queue) == 1


def test_wakes_of_different_clusters_and_kinds_are_apart(queue: redis.Redis) -> None:
    for what, cluster in (("schedule", CLUSTER), ("schedule", CLUSTER + 1), ("reports", CLUSTER)):
        events.wake_now(what, cluster)
    assert queued(queue) == 3


def test_a_task_runs_again_for_a_wake_that_came_while_it_ran(queue: redis.Redis) -> None:
    events.wake_now("schedule", CLUSTER)
    runs = []

    def run_once() -> bool:
        runs.append(len(runs))
        if len(runs) < 3:
            events.wake_now("schedule", CLUSTER)
        return False

    events.run_while_woken("schedule", CLUSTER, run_once)
    assert len(runs) == 3
    assert queued(queue) == 1, "a wake during a run queues nothing: the run that goes on sees it"


def test_a_task_runs_again_for_what_it_left_over(queue: redis.Redis) -> None:
    left_over = [True, True, False]
    events.run_while_woken("schedule", CLUSTER, lambda: left_over.pop(0))
    assert left_over == []


def test_after_a_task_has_left_the_next_wake_queues_again(queue: redis.Redis) -> None:
    events.wake_now("schedule", CLUSTER)
    events.run_while_woken("schedule", CLUSTER, lambda: False)
    events.wake_now("schedule", CLUSTER)
    assert queued(queue) == 2


def test_after_a_task_was_lost_with_its_worker_the_flag_expires(queue: redis.Redis) -> None:
    events.wake_now("schedule", CLUSTER)
    assert 0 < queue.ttl(f"astra:queued:schedule:{CLUSTER}") <= events.QUEUED_SECONDS


def test_past_its_time_a_task_leaves_the_rest_to_a_new_one(queue: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "RUN_SECONDS", -1)
    events.run_while_woken("schedule", CLUSTER, lambda: True)
    assert queued(queue) == 1


def test_restart_times_of_a_batch_are_looked_at_once_a_second(queue: redis.Redis) -> None:
    events._enqueue_at("restarts", {after(1000), after(1001)})
    assert queued(queue) == 2


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    retry = events._redis.get_retry()
    monkeypatch.setattr(events, "_redis", redis.Redis(unix_socket_path="/nonexistent/redis.sock", retry=retry))


def test_a_wake_without_redis_fails_nobody(away: None) -> None:
    events.wake_now("schedule", CLUSTER)


def test_a_task_without_redis_runs_once(away: None) -> None:
    runs: list[int] = []
    events.run_while_woken("schedule", CLUSTER, lambda: bool(runs.append(1)))
    assert runs == [1]


@pytest.mark.django_db(transaction=True)
def test_a_run_is_accepted_while_redis_is_away_and_the_periodic_tick_places_it(away: None) -> None:
    editor = make.access(make.workspace())
    east = make.cluster(editor.workspace)
    make.machine(east)
    run = make.submit(editor, east)
    tasks.tick_all()
    run.refresh_from_db()
    assert run.state == "Starting"


# ---- tasks ----


@pytest.mark.django_db
def test_a_tick_places_and_may_run_twice(queue: redis.Redis) -> None:
    editor = make.access(make.workspace())
    east = make.cluster(editor.workspace)
    make.machine(east)
    run = make.submit(editor, east, array={"count": 3})
    tasks.tick(east.pk)
    tasks.tick(east.pk)
    assert [worker.state for worker in make.workers(run)] == ["Preparing"] * 3
    make.check_invariants()


@pytest.mark.django_db
def test_the_periodic_tick_starts_what_is_due(queue: redis.Redis) -> None:
    editor = make.access(make.workspace())
    east = make.cluster(editor.workspace)
    on = make.machine(east)
    run = make.submit(editor, east)
    make.report_end(make.run_on(make.workers(run)[0], on), exit_code=1)
    run.workers.update(restart_at=after(0) - timedelta(days=365 * 100))
    tasks.tick_all()
    assert make.workers(run)[0].attempt_number == 2
    make.check_invariants()


@pytest.mark.django_db
def test_workers_of_an_expired_lease_are_placed_elsewhere(queue: redis.Redis) -> None:
    editor = make.access(make.workspace())
    east = make.cluster(editor.workspace)
    gone = make.machine(east)
    run = make.submit(editor, east)
    make.run_on(make.workers(run)[0], gone)
    ages_ago = after(0) - timedelta(days=365)
    Machine.objects.update(last_seen_at=ages_ago)
    now = tasks.timezone.now()
    for process, kind in (("daphne:a:1", "daphne"), ("leases", "leases")):
        Liveness.objects.create(process=process, kind=kind, since=ages_ago, seen_at=now)
    tasks.expire_leases()
    assert make.workers(run)[0].reason == "Machine lost: its lease expired"
    kept = make.machine(east, last_seen_at=now)
    tasks.tick(east.pk)
    assert make.newest_attempt(make.workers(run)[0]).machine == kept
    make.check_invariants()


def test_beat_without_a_place_for_its_schedule_says_so_in_one_line(tmp_path: Path) -> None:
    schedule = tmp_path / "nowhere" / "beat-schedule"
    beat = ["celery", "-A", "astraconsole", "beat", "--schedule", str(schedule), "--pidfile", ""]
    ended = subprocess.run(
        [sys.executable, "-m", *beat], cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode != 0
    assert "No such file or directory" in ended.stderr.splitlines()[-1]
    assert "celery.redirected" not in ended.stderr
