"""When machines are lost, and that no outage of the console makes them so."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machines import leases, services
from machines.leases import CHECK, DAPHNE, Alive, Lease
from machines.models import Liveness, Machine, MachineState
from tests.fleet import NOON, a_cluster, a_machine, ago, an_order

LENGTH = timedelta(seconds=30)


def daphne(since: float, seen: float = 1) -> Alive:
    return Alive(DAPHNE, ago(since), ago(seen))


def check(since: float, seen: float = 0) -> Alive:
    return Alive(CHECK, ago(since), ago(seen))


@pytest.mark.parametrize(
    ("silent_for", "processes", "is_lost", "why"),
    [
        (31, [daphne(100), check(100)], True, "everything was alive for the lease's whole length"),
        (30, [daphne(100), check(100)], False, "a lease lasts its whole length"),
        (31, [], False, "nothing was alive"),
        (31, [daphne(100)], False, "no check was alive"),
        (31, [check(100)], False, "no daphne was alive"),
        (3600, [daphne(29), check(7200)], False, "the only daphne has just started"),
        (3600, [daphne(7200), check(29)], False, "the check has just come back"),
        (3600, [daphne(31), check(31)], True, "both have been back for a lease's length"),
        (31, [daphne(100, seen=16), check(100)], False, "the daphne is gone"),
        (31, [daphne(100, seen=16), daphne(5), check(100)], False, "one daphne is gone, the other has just started"),
        (31, [daphne(100), daphne(5), check(100)], True, "one of two daphnes was there all the time"),
        (31, [daphne(100), check(100, seen=16)], False, "the check is not alive"),
    ],
)
def test_a_lease_expires_only_under_the_eyes_of_the_console(silent_for, processes, is_lost, why):
    lost = leases.expired([Lease(7, ago(silent_for))], processes, NOON, LENGTH)
    assert (lost == [7]) is is_lost, why


seconds = st.floats(0, 10_000)
alive = st.builds(
    lambda kind, a, b: Alive(kind, ago(max(a, b)), ago(min(a, b))), st.sampled_from([DAPHNE, CHECK]), seconds, seconds
)


@given(st.lists(seconds), st.lists(alive))
def test_no_machine_is_lost_that_was_heard_within_its_lease(silences, processes):
    held = [Lease(number, ago(silence)) for number, silence in enumerate(silences)]
    for number in leases.expired(held, processes, NOON, LENGTH):
        assert silences[number] > LENGTH.total_seconds()


@given(seconds, st.lists(alive, min_size=1))
def test_a_machine_is_lost_only_if_both_kinds_lived_through_its_whole_lease(silence, processes):
    if leases.expired([Lease(1, ago(silence))], processes, NOON, LENGTH):
        for kind in (DAPHNE, CHECK):
            assert any(process.kind == kind and process.since < NOON - LENGTH for process in processes)


@given(seconds, st.lists(alive), st.floats(0, 1000))
def test_waiting_longer_never_brings_a_lost_machine_back(silence, processes, later):
    """As long as the same processes live on."""
    lease = Lease(1, ago(silence))
    if not leases.expired([lease], processes, NOON, LENGTH):
        return
    after = timedelta(seconds=later)
    living = [Alive(process.kind, process.since, process.seen_at + after) for process in processes]
    assert leases.expired([lease], living, NOON + after, LENGTH)


# ---- with the database -----------------------------------------------------------------------------------------------


@pytest.fixture
def console_alive(db):
    """A daphne and the check that have lived for an hour, at noon."""
    Liveness.objects.create(process="daphne:a:1", kind=DAPHNE, since=ago(3600), seen_at=ago(1))
    Liveness.objects.create(process=CHECK, kind=CHECK, since=ago(3600), seen_at=ago(5))


@pytest.mark.usefixtures("console_alive")
class TestExpireLeases:
    def test_a_silent_machine_is_lost_and_a_living_one_is_not(self):
        cluster = a_cluster()
        silent = a_machine(cluster, "silent", last_seen_at=ago(31), connection="c1")
        living = a_machine(cluster, "living", last_seen_at=ago(29), connection="c2")
        assert services.expire_leases(NOON) == [silent.pk]
        silent.refresh_from_db()
        living.refresh_from_db()
        assert (silent.state, silent.state_reason) == (MachineState.LOST, "Machine lost: its lease expired")
        assert silent.connection == "", "what its old connection still says is not listened to"
        assert living.state == MachineState.READY

    def test_a_machine_that_has_not_joined_yet_has_no_lease(self):
        a_machine(a_cluster(), state=MachineState.JOINING)
        assert services.expire_leases(NOON) == []

    def test_a_lost_machine_is_named_once_when_its_work_was_taken_back(self):
        a_machine(a_cluster(), last_seen_at=ago(31))
        assert services.expire_leases(NOON)
        assert services.expire_leases(NOON) == []

    @pytest.mark.parametrize("state", [MachineState.LOST, MachineState.REMOVED])
    def test_a_machine_that_is_gone_is_named_until_its_work_was_taken_back(self, state):
        machine = a_machine(a_cluster(), state=state)
        order = an_order()
        services.dispatch.assign([(machine.pk, order)])
        assert services.expire_leases(NOON) == [machine.pk]
        services.dispatch.withdraw([order.attempt])
        assert services.expire_leases(NOON) == []

    def test_after_a_pause_of_the_check_all_leases_start_anew(self):
        machine = a_machine(a_cluster(), last_seen_at=ago(3600))
        Liveness.objects.filter(process=CHECK).update(seen_at=ago(60))
        assert services.expire_leases(NOON) == []
        services.record_alive("daphne:a:1", DAPHNE, NOON)
        for second in (10, 20, 30):
            now = NOON + timedelta(seconds=second)
            services.record_alive("daphne:a:1", DAPHNE, now)
            assert services.expire_leases(now) == []
        assert services.expire_leases(NOON + timedelta(seconds=31)) == [machine.pk]

    def test_after_a_pause_of_the_daphne_all_leases_start_anew(self):
        a_machine(a_cluster(), last_seen_at=ago(3600))
        Liveness.objects.filter(kind=DAPHNE).update(seen_at=ago(60))
        services.record_alive("daphne:a:1", DAPHNE, NOON)
        assert services.expire_leases(NOON) == []

    @pytest.mark.parametrize("jump", [300, -300])
    def test_a_jump_of_the_consoles_clock_loses_no_machine_that_is_heard_and_finds_one_that_is_not(self, jump):
        machine = a_machine(a_cluster(), last_seen_at=ago(2), connection="c1")
        jumped = NOON + timedelta(seconds=jump)
        lost = []
        for second in range(0, 120, 5):
            now = jumped + timedelta(seconds=second)
            services.record_alive("daphne:a:1", DAPHNE, now)
            lost.append(services.expire_leases(now))
            if second < 60:
                Machine.objects.filter(pk=machine.pk).update(last_seen_at=now)
        silent_for = [second - 55 for second in range(0, 120, 5)]
        assert [bool(found) for found in lost] == [seconds == 35 for seconds in silent_for]

    def test_rows_of_processes_long_dead_go(self):
        Liveness.objects.create(process="daphne:b:2", kind=DAPHNE, since=ago(200_000), seen_at=ago(100_000))
        services.expire_leases(NOON)
        assert set(Liveness.objects.values_list("process", flat=True)) == {"daphne:a:1", CHECK}
