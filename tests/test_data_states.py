"""What machines say they hold, written for all of them at once."""

import uuid

import pytest

from machines import data_states
from machines.data_states import Told
from machines.models import DataOnMachine
from machines.orders import DataKind
from machines.protocol import DataState
from tests import builders as make
from tests.builders import T0, after

pytestmark = pytest.mark.django_db

A, B = "a" * 32, "b" * 32


def credential(uid: str, state: str = "Synced", message: str = "") -> DataState:
    return DataState(DataKind.CREDENTIAL, uid, state, message)


@pytest.fixture
def two_machines():
    cluster = make.cluster(make.workspace())
    return make.machine(cluster, connection="one"), make.machine(cluster, connection="two")


def rows(machine):
    found = DataOnMachine.objects.filter(machine=machine).order_by("uid")
    return [(row.uid.hex, row.state, row.message, row.changed_at) for row in found]


def test_each_machines_set_replaces_its_own_earlier_one(two_machines, django_assert_num_queries):
    one, two = two_machines
    data_states.write([Told(one.pk, "one", T0, [credential(A), credential(B)]), Told(two.pk, "two", T0, [])])
    data_states.write([Told(two.pk, "two", T0, [credential(A, "Failed", "no such file")])])
    with django_assert_num_queries(5):  # a lock, two statements, the transaction's own
        data_states.write(
            [Told(one.pk, "one", after(5), [credential(B)]), Told(two.pk, "two", after(5), [credential(A)])]
        )
    assert rows(one) == [(B, "Synced", "", T0)]
    assert rows(two) == [(A, "Synced", "", after(5))]


def test_a_connection_that_is_no_longer_the_machines_changes_nothing(two_machines):
    one, _ = two_machines
    data_states.write([Told(one.pk, "one", T0, [credential(A)])])
    data_states.write([Told(one.pk, "an older one", after(1), [])])
    assert rows(one) == [(A, "Synced", "", T0)]


def test_progress_does_not_change_since_when_a_state_holds(two_machines):
    one, _ = two_machines
    for seconds, done in ((0, 1), (1, 2)):
        item = DataState(DataKind.DRIVE, A, "Filling", "", done, 10)
        data_states.write([Told(one.pk, "one", after(seconds), [item, item])])
    row = DataOnMachine.objects.get()
    assert (row.kind, row.uid, row.done_bytes, row.total_bytes, row.changed_at) == ("drive", uuid.UUID(A), 2, 10, T0)
