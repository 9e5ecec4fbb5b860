"""The inbox: nothing that was reported is lost, applied in order, or stuck behind something that cannot be applied."""

import uuid
from datetime import UTC, datetime

import pytest
import redis
import redis.asyncio
from asgiref.sync import async_to_sync
from django.conf import settings
from django.db import OperationalError, connection, connections, transaction

from machines import inbox, protocol
from machines.models import SetAsideReport
from tests.fleet import a_cluster, a_machine, a_report

AT = datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)


class Applied:
    """Applies reports by remembering them."""

    def __init__(self, refuse=lambda entry: None):
        self.refuse = refuse
        self.batches: list[int] = []
        self.entries: list[inbox.Entry] = []

    def __call__(self, entries, now):
        self.batches.append(len(entries))
        for entry in entries:
            if error := self.refuse(entry):
                raise error
        self.entries += entries
        return [
            (entry.machine_uid, uuid.UUID(entry.report.attempt), entry.report.seq) for entry in entries if entry.report
        ]

    @property
    def reports(self):
        return [entry.report for entry in self.entries]


@pytest.fixture
def store():
    store = redis.Redis.from_url(settings.REDIS_URL)
    store.flushdb()
    yield store
    store.close()


@pytest.fixture
def machine(db, store):
    return a_machine(a_cluster())


@pytest.fixture
def acknowledged(monkeypatch):
    """What was acknowledged."""
    items = []
    monkeypatch.setattr(inbox.dispatch, "acknowledge", items.extend)
    return items


def say(machine, *reports, **content):
    async def append():
        async with redis.asyncio.Redis.from_url(settings.REDIS_URL) as client:
            await inbox.append(
                client, [inbox.Said(machine.cluster_id, machine.pk, machine.uid, AT, reports, **content)]
            )

    async_to_sync(append)()


def is_empty(store, machine):
    return store.xlen(inbox.stream(machine.cluster_id)) == 0


def test_entries_carry_who_said_what_and_when(machine):
    report = a_report(log_tail="é", exit_code=None)
    known = [uuid.uuid4().hex]
    say(machine, report, hello=known)
    applied = Applied()
    assert inbox.drain(machine.cluster_id, applied) == 2
    hello, reported = applied.entries
    assert (hello.hello, hello.report) == (known, None)
    assert (reported.hello, reported.report) == (None, report)
    for entry in applied.entries:
        assert (entry.machine_id, entry.machine_uid, entry.received_at) == (machine.pk, machine.uid, AT)


def test_reports_are_applied_in_order_in_batches_and_are_then_gone(machine, store, acknowledged):
    reports = [a_report(seq=number) for number in range(1200)]
    for start in range(0, 1200, 100):
        say(machine, *reports[start : start + 100])
    applied = Applied()
    assert inbox.drain(machine.cluster_id, applied) == 1200
    assert applied.reports == reports
    assert applied.batches == [500, 500, 200]
    assert acknowledged == [(machine.uid, uuid.UUID(report.attempt), report.seq) for report in reports]
    assert is_empty(store, machine)


def test_of_an_attempts_reports_the_newest_is_applied_once(machine, acknowledged):
    attempt, other = uuid.uuid4(), uuid.uuid4()
    reports = [a_report(attempt, seq) for seq in (1, 2, 3, 2, 3)]
    say(machine, *reports[:2], a_report(other, 1), *reports[2:])
    applied = Applied()
    inbox.drain(machine.cluster_id, applied)
    assert [(report.attempt, report.seq) for report in applied.reports] == [(other.hex, 1), (attempt.hex, 3)]


def test_another_machines_report_does_not_replace_one(machine):
    other = a_machine(machine.cluster, "gpu-08")
    attempt = uuid.uuid4()
    say(machine, a_report(attempt, 1))
    say(other, a_report(attempt, 9))
    applied = Applied()
    inbox.drain(machine.cluster_id, applied)
    assert [(entry.machine_id, entry.report.seq) for entry in applied.entries] == [(machine.pk, 1), (other.pk, 9)]


def test_a_report_that_cannot_be_applied_is_set_aside_and_holds_nobody_up(machine, store, acknowledged):
    reports = [a_report(seq=number) for number in range(100)]
    poison = reports[42]
    say(machine, *reports)
    applied = Applied(refuse=lambda entry: ValueError("no\0such") if entry.report == poison else None)
    inbox.drain(machine.cluster_id, applied)
    assert applied.reports == [report for report in reports if report != poison]
    assert len(acknowledged) == 100, "the machine must not repeat it for ever"
    assert is_empty(store, machine)
    kept = SetAsideReport.objects.get()
    assert (kept.machine, kept.attempt.hex, kept.seq, kept.received_at) == (machine, poison.attempt, 42, AT)
    assert protocol.decode_report(bytes(kept.payload)) == poison
    assert kept.error.startswith("ValueError: no")


def test_what_is_no_report_at_all_is_set_aside(machine, store):
    store.xadd(inbox.stream(machine.cluster_id), {b"report": b"\xff"})
    head = {b"machine": machine.pk, b"uid": machine.uid.bytes, b"at": "1"}
    store.xadd(inbox.stream(machine.cluster_id), {**head, b"report": b"\xc1"})
    say(machine, a_report())
    applied = Applied()
    assert inbox.drain(machine.cluster_id, applied) == 3
    assert len(applied.entries) == 1
    assert SetAsideReport.objects.count() == 2


def test_a_set_aside_report_can_be_put_back(machine, django_capture_on_commit_callbacks):
    report = a_report()
    say(machine, report)
    inbox.drain(machine.cluster_id, Applied(refuse=lambda entry: ValueError("not today")))
    with django_capture_on_commit_callbacks():
        inbox.put_back(SetAsideReport.objects.get())
    applied = Applied()
    inbox.drain(machine.cluster_id, applied)
    assert applied.reports == [report]
    assert not SetAsideReport.objects.exists()


def test_only_the_newest_reports_set_aside_are_kept(machine, monkeypatch):
    monkeypatch.setattr(inbox, "MAX_SET_ASIDE", 3)
    say(machine, *(a_report(seq=number) for number in range(6)))
    inbox.drain(machine.cluster_id, Applied(refuse=lambda entry: ValueError("never")))
    assert sorted(SetAsideReport.objects.values_list("seq", flat=True)) == [3, 4, 5]


def test_a_database_error_that_passes_sets_nothing_aside(machine):
    say(machine, a_report())
    errors = [OperationalError("deadlock detected"), OperationalError("deadlock detected")]
    applied = Applied(refuse=lambda entry: errors.pop() if errors else None)
    inbox.drain(machine.cluster_id, applied)
    assert len(applied.entries) == 1
    assert not SetAsideReport.objects.exists()


def test_what_a_failed_batch_wrote_is_taken_back(machine):
    say(machine, a_report(seq=1), a_report(seq=2))

    def apply(entries, now):
        a_machine(machine.cluster, f"made-{len(entries)}-{entries[0].report.seq}")
        if len(entries) > 1:
            raise ValueError("not together")
        return []

    inbox.drain(machine.cluster_id, apply)
    names = set(machine.cluster.machines.values_list("name", flat=True))
    assert names == {machine.name, "made-1-1", "made-1-2"}


def test_text_that_the_database_cannot_hold_is_made_storable(machine):
    say(machine, a_report(log_tail="a\0b", message="\0"))
    applied = Applied()
    inbox.drain(machine.cluster_id, applied)
    assert (applied.reports[0].log_tail, applied.reports[0].message) == ("a\ufffdb", "\ufffd")


def test_the_stream_is_bounded_and_keeps_the_newest(machine, store, monkeypatch):
    monkeypatch.setattr(inbox, "MAX_ENTRIES", 200)
    for start in range(0, 1000, 100):
        say(machine, *(a_report(seq=number) for number in range(start, start + 100)))
    assert store.xlen(inbox.stream(machine.cluster_id)) <= 200 + 100  # trimmed by whole nodes
    applied = Applied()
    inbox.drain(machine.cluster_id, applied)
    assert applied.reports[-1].seq == 999


def test_clusters_have_inboxes_of_their_own(machine):
    other = a_machine(a_cluster(slug="gpu-west"))
    say(other, a_report())
    assert inbox.drain(machine.cluster_id, Applied()) == 0
    assert inbox.drain(other.cluster_id, Applied()) == 1


def test_what_comes_in_during_a_batch_is_drained_too(machine):
    late = a_report(seq=2)

    def apply(entries, now):
        if not applied.entries:
            say(machine, late)
        return applied(entries, now)

    applied = Applied()
    say(machine, a_report(seq=1))
    assert inbox.drain(machine.cluster_id, apply) == 2
    assert applied.reports[-1] == late


@pytest.mark.django_db(transaction=True)
def test_a_second_drain_leaves_at_once_while_one_is_at_it(store):
    machine = a_machine(a_cluster())
    say(machine, a_report())
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:  # another process, in the middle of a batch
            cursor.execute("BEGIN")
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext('inbox'), %s)", [machine.cluster_id])
            assert inbox.drain(machine.cluster_id, Applied()) == 0
            cursor.execute("ROLLBACK")
    finally:
        other.close()
    assert inbox.drain(machine.cluster_id, Applied()) == 1


@pytest.mark.django_db(transaction=True)
def test_a_crash_before_the_commit_leaves_everything_for_the_next_drain(store, acknowledged):
    machine = a_machine(a_cluster())
    report = a_report()
    say(machine, report)

    def crash(entries, now):
        raise SystemExit

    with pytest.raises(SystemExit):
        inbox.drain(machine.cluster_id, crash)
    assert not connection.in_atomic_block
    assert acknowledged == []
    applied = Applied()
    inbox.drain(machine.cluster_id, applied)
    assert applied.reports == [report]


@pytest.mark.django_db(transaction=True)
def test_nothing_is_acknowledged_before_its_commit(store, monkeypatch):
    machine = a_machine(a_cluster())
    say(machine, a_report())
    open_transactions = []
    monkeypatch.setattr(
        inbox.dispatch,
        "acknowledge",
        lambda items: open_transactions.append(transaction.get_connection().in_atomic_block),
    )
    inbox.drain(machine.cluster_id, Applied())
    assert open_transactions == [False]
