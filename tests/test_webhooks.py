"""Webhooks with a real receiver: in order, signed, at least once, tried again; and nowhere they must not go."""

import hashlib
import hmac
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from astraconsole.celery import app
from astraconsole.errors import ValidationError
from astraconsole.tenancy.models import AuditEvent
from astraconsole.tenancy.permissions import Role
from runs.models import Delivery, Webhook
from runs.services import deliveries, webhooks
from runs.services.webhooks import create_webhook, secret_of
from runs.webhook_rules import WAITS
from runs.webhook_sending import Reach, is_allowed, post, url_rule
from tests import builders
from tests.api_calls import WORKSPACE, Caller, refused
from tests.conftest import PROJECT
from tests.console import eventually
from tests.receiver import Receiver, receiving
from tests.world import World, make_world


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def world(transactional_db: None, settings: Any) -> World:
    """Committed: only what has settled is sent."""
    settings.WEBHOOK_REACH = "loopback"
    made = make_world()
    Webhook.objects.all().delete()
    return made


def hook(world: World, receiver: Receiver, *kinds: str) -> Webhook:
    return create_webhook(world.access(Role.ADMIN), receiver.url, list(kinds), timezone.now())[0]


def submit(world: World, *names: str) -> None:
    for name in names:
        builders.submit(world.access(), world.cluster, name, cpu=1)


def deliver(webhook: Webhook) -> Webhook:
    """What the next tick does, once a wait is over."""
    Webhook.objects.filter(pk=webhook.pk).update(next_at=None)
    deliveries.deliver(webhook.pk)
    webhook.refresh_from_db()
    return webhook


# ---- deliveries ----


def test_events_arrive_in_order_signed_and_of_the_kinds_that_were_chosen(world: World, receiver: Receiver) -> None:
    webhook = hook(world, receiver, "run")
    submit(world, "one", "two")
    deliver(webhook)
    submit(world, "three")
    deliver(webhook)
    deliver(webhook)
    assert [request.names for request in receiver.received] == [["one", "two"], ["three"]]
    first = receiver.received[0]
    assert first.body["workspace"] == "acme/vision"
    assert first.headers["X-Astra-Delivery"] == first.body["id"]
    stamp, given = first.headers["X-Astra-Signature"].split(",")
    signed = stamp.removeprefix("t=").encode() + b"." + first.raw
    assert given == "v1=" + hmac.new(secret_of(webhook).encode(), signed, hashlib.sha256).hexdigest()
    assert [delivery.state for delivery in webhooks.deliveries_of(webhook, 9)] == ["Delivered"] * 2


def test_after_a_restore_by_the_book_new_events_are_sent_and_listed_first(world: World, receiver: Receiver) -> None:
    webhook = hook(world, receiver, "run")
    submit(world, "before")
    deliver(webhook)
    with connection.cursor() as cursor:  # as from a server that has counted further
        for table in ("runs_transition", "machines_machineevent", "tenancy_auditevent"):
            cursor.execute(f"UPDATE {table} SET tx = tx + 1000000000")
        cursor.execute("UPDATE runs_webhook SET position = '1000000000.0.0', news_from = 1000000000")
        cursor.execute((PROJECT / "docs/events.md").read_text().split("```sql\n")[1].split("```")[0])
    submit(world, "after")
    deliver(webhook)
    assert [request.names for request in receiver.received] == [["before"], ["after"]]
    newest = Caller(world, Role.VIEWER).get(f"{WORKSPACE}/events", kind="run").json()["items"]
    assert [event["name"] for event in newest[:2]] == ["after", "before"]


def test_what_is_not_taken_is_sent_again_as_it_was_before_anything_newer(world: World, receiver: Receiver) -> None:
    webhook = hook(world, receiver, "run")
    receiver.answers = [500, 302, 200]
    submit(world, "one")
    before = timezone.now()
    deliveries.deliver(webhook.pk)
    webhook.refresh_from_db()
    assert webhook.next_at is not None
    assert webhook.next_at >= before + timedelta(seconds=WAITS[0])
    deliveries.deliver(webhook.pk)  # too early
    submit(world, "two")
    deliver(webhook)
    assert webhook.failing_since is not None
    deliver(webhook)
    assert [request.names for request in receiver.received] == [["one"], ["one"], ["one"], ["two"]]
    assert len({request.body["id"] for request in receiver.received[:3]}) == 1
    assert [request.headers["X-Astra-Attempt"] for request in receiver.received[:3]] == ["1", "2", "3"]
    newest, first = webhooks.deliveries_of(webhook, 9)
    assert (first.state, first.attempts, first.status, first.answer, first.error) == ("Delivered", 3, 200, "noted", "")
    assert newest.attempts == 1
    assert (webhook.failing_since, webhook.next_at) == (None, None)


def test_a_webhook_that_fails_too_long_is_disabled_with_a_sentence_and_goes_on_where_it_stopped(
    world: World, receiver: Receiver
) -> None:
    webhook = hook(world, receiver, "run")
    submit(world, "one")
    receiver.answers = [503, 503]
    deliver(webhook)
    Webhook.objects.filter(pk=webhook.pk).update(failing_since=timezone.now() - timedelta(days=3))
    deliver(webhook)
    assert not webhook.enabled
    assert webhook.disabled_reason == (
        "Disabled by the console: every try has failed for 3d, the last one with: answered 503"
    )
    told = AuditEvent.objects.latest("pk")
    assert (told.kind, told.name, told.state, told.actor) == ("webhook", "127.0.0.1", "Disabled", "console")
    deliver(webhook)
    assert len(receiver.received) == 2
    webhooks.set_enabled(world.access(Role.ADMIN), webhook, True, timezone.now())
    deliver(webhook)
    assert receiver.received[-1].names == ["one"]


def test_a_test_and_a_replay_are_sent_once_out_of_the_order(world: World, receiver: Receiver) -> None:
    admin, webhook = world.access(Role.ADMIN), hook(world, receiver, "run")
    submit(world, "one")
    deliver(webhook)
    (sent,) = webhooks.deliveries_of(webhook, 9)
    webhooks.set_enabled(admin, webhook, False, timezone.now())
    receiver.answers = [500, 200]
    webhooks.send_test(admin, webhook, timezone.now())
    webhooks.replay(admin, webhook, sent, timezone.now())
    deliver(webhook)
    deliver(webhook)
    assert [(request.body["purpose"], request.names) for request in receiver.received[1:]] == [
        ("test", []),
        ("replay", ["one"]),
    ]
    assert [delivery.state for delivery in webhooks.deliveries_of(webhook, 9)] == ["Delivered", "Failed", "Delivered"]


def test_many_events_go_in_pieces_and_none_twice(world: World, receiver: Receiver) -> None:
    webhook = hook(world, receiver)
    builders.submit(world.access(), world.cluster, "many", array={"count": 250})
    submit(world, "last")
    deliver(webhook)
    ids = [item["id"] for request in receiver.received for item in request.body["items"]]
    names = [name for request in receiver.received for name in request.names]
    assert len(ids) == len(set(ids)) == 1 + 250 + 2 + 1  # the webhook itself, the array, `last`
    assert {f"many-{rank}" for rank in range(250)} <= set(names)
    assert names[-2:] == ["last", "last-0"]


def test_a_process_that_is_killed_in_mid_delivery_loses_nothing(world: World, receiver: Receiver) -> None:
    """A real Celery worker gets SIGKILL while it waits for the receiver; the delivery comes again with its id."""
    webhook = hook(world, receiver, "run")
    submit(world, "one")
    receiver.answers = ["hang"]
    url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    environment = {**os.environ, "DATABASE_URL": url, "WEBHOOK_REACH": "loopback"}
    worker = ["worker", "--pool", "threads", "--concurrency", "1", "-Q", "of-this-test", "--loglevel", "ERROR"]
    command = [sys.executable, "-m", "celery", "-A", "astraconsole", *worker]
    process = subprocess.Popen(command, cwd=PROJECT, env=environment)
    try:
        app.send_task("runs.tasks.deliver_webhooks", queue="of-this-test")
        eventually(lambda: receiver.received, 60)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    deliver(webhook)
    assert len(receiver.received) == 1, "its claim has not lapsed"
    Webhook.objects.filter(pk=webhook.pk).update(claimed_until=timezone.now() - timedelta(seconds=1))
    deliver(webhook)
    first, second = receiver.received
    assert (second.body["id"], second.names) == (first.body["id"], ["one"])
    assert Delivery.objects.get().state == "Delivered"


def test_the_tick_sends_for_whoever_has_news_and_asks_the_others_nothing(world: World, receiver: Receiver) -> None:
    webhook = hook(world, receiver, "run")
    quiet = create_webhook(world.access(Role.ADMIN), "https://hooks.example.invalid/", ["drive"], timezone.now())[0]
    deliveries.deliver_all()
    assert receiver.received == []
    submit(world, "one")
    deliveries.deliver_all()
    assert [request.names for request in receiver.received] == [["one"]]
    quiet.refresh_from_db()
    webhook.refresh_from_db()
    assert not quiet.deliveries.exists()
    assert min(quiet.news_from, webhook.news_from) > 0


# ---- one try ----


def test_a_receiver_that_does_not_answer_in_time_has_failed(receiver: Receiver) -> None:
    receiver.answers = ["hang"]
    outcome = post(receiver.url, b"{}", {}, Reach.LOOPBACK, seconds=0.3)
    assert (outcome.status, outcome.error) == (None, "no answer within 0.3 s")


def test_a_body_without_end_is_cut_and_its_status_counts(receiver: Receiver) -> None:
    receiver.answers = ["drip"]
    outcome = post(receiver.url, b"{}", {}, Reach.LOOPBACK, seconds=1)
    assert (outcome.status, outcome.error) == (200, "")


def test_a_redirect_is_a_failure_and_is_not_followed(receiver: Receiver) -> None:
    receiver.answers = [307]
    assert post(receiver.url, b"{}", {}, Reach.LOOPBACK).error == "answered 307: redirects are not followed"
    assert len(receiver.received) == 1


def test_a_name_that_leads_inside_is_not_connected_to(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    port = receiver.url.split(":")[2].split("/")[0]
    answer = [(2, 1, 6, "", ("127.0.0.1", int(port)))]
    monkeypatch.setattr("socket.getaddrinfo", lambda *args, **options: answer)
    outcome = post(f"https://hooks.example.com:{port}/", b"{}", {}, Reach.PRIVATE)
    assert outcome.error == "hooks.example.com leads to an address that webhooks may not reach"
    assert receiver.received == []


@pytest.mark.parametrize(
    ("address", "from_reach"),
    [
        ("93.184.216.34", Reach.PUBLIC),
        ("2606:2800:220:1::1", Reach.PUBLIC),
        ("10.1.2.3", Reach.PRIVATE),
        ("192.168.0.9", Reach.PRIVATE),
        ("172.16.0.1", Reach.PRIVATE),
        ("fd00::1", Reach.PRIVATE),
        ("::ffff:10.0.0.1", Reach.PRIVATE),
        ("64:ff9b::a00:1", Reach.PRIVATE),
        ("2002:a00:1::", Reach.PRIVATE),
        ("127.0.0.1", Reach.LOOPBACK),
        ("::1", Reach.LOOPBACK),
        ("::ffff:127.0.0.1", Reach.LOOPBACK),
        ("64:ff9b::7f00:1", Reach.LOOPBACK),
        ("169.254.169.254", None),
        ("fe80::1%eth0", None),
        ("0.0.0.0", None),
        ("::", None),
        ("224.0.0.1", None),
    ],
)
def test_how_far_a_webhook_may_reach(address: str, from_reach: Reach | None) -> None:
    order = list(Reach)
    expected = [from_reach is not None and order.index(reach) >= order.index(from_reach) for reach in order]
    assert [is_allowed(address, reach) for reach in order] == expected


@pytest.mark.parametrize(
    ("url", "reach", "good"),
    [
        ("https://hooks.example.com/a?b=c", Reach.PUBLIC, True),
        ("http://hooks.example.com/", Reach.LOOPBACK, False),
        ("http://127.0.0.1:8080/", Reach.LOOPBACK, True),
        ("http://127.0.0.1:8080/", Reach.PRIVATE, False),
        ("https://127.0.0.1/", Reach.PRIVATE, False),
        ("https://10.0.0.1/", Reach.PUBLIC, False),
        ("https://10.0.0.1/", Reach.PRIVATE, True),
        ("https://user:pass@hooks.example.com/", Reach.PUBLIC, False),
        ("https://hooks.example.com:99999/", Reach.PUBLIC, False),
        ("https:///path", Reach.PUBLIC, False),
        ("https://[::1", Reach.PUBLIC, False),
        ("ftp://hooks.example.com/", Reach.PUBLIC, False),
        ("https://hooks.example.com/\r\nX: y", Reach.PUBLIC, False),
        ("https://hooks.example.com/" + "a" * 500, Reach.PUBLIC, False),
        (7, Reach.PUBLIC, False),
    ],
)
def test_which_addresses_a_webhook_may_have(url: object, reach: Reach, good: bool) -> None:
    assert (url_rule(url, reach) == "") == good


# ---- setting up ----


def test_the_secret_is_shown_once_and_kept_nowhere(world: World) -> None:
    caller = Caller(world, Role.ADMIN)
    made = caller.post(f"{WORKSPACE}/webhooks", {"url": "https://hooks.example.com/astra", "kinds": ["run"]})
    assert made.status_code == 201
    secret = made.json()["secret"]
    address = f"{WORKSPACE}/webhooks/{made.json()['id']}"
    assert "secret" not in caller.get(address).json()
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_json(w)::text FROM runs_webhook w")
        (row,) = cursor.fetchone()
    assert secret.removeprefix("astra_hook_") not in row
    assert caller.post(f"{address}/secret").json()["secret"] not in ("", secret)
    assert caller.post(f"{address}/test").status_code == 202
    assert caller.get(f"{address}/deliveries").json()["items"][0]["purpose"] == "test"
    assert caller.delete(address).status_code == 204
    assert caller.get(address).status_code == 404


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"url": "http://hooks.example.com"}, "VALIDATION_ERROR", "url"),
        ({"url": "https://hooks.example.com", "kinds": ["jobs"]}, "VALIDATION_ERROR", "kinds"),
        ({"url": "https://hooks.example.com", "kinds": [{}]}, "VALIDATION_ERROR", "kinds"),
        ({}, "VALIDATION_ERROR", "url"),
        ({"url": "https://hooks.example.com", "secret": "x"}, "UNKNOWN_FIELD", "secret"),
    ],
)
def test_a_bad_webhook_is_refused_by_field(world: World, body: dict[str, Any], code: str, field: str) -> None:
    answer = refused(Caller(world, Role.ADMIN).post(f"{WORKSPACE}/webhooks", body), 400, code)
    assert answer["detail"][0]["field"] == field


def test_an_admin_sets_one_up_on_the_page_and_reads_its_log(world: World, receiver: Receiver) -> None:
    client = Client()
    client.force_login(world.members[Role.ADMIN])
    base = "/o/acme/w/vision/webhooks"
    bad = client.post(base, {"url": "ftp://x"})
    assert (bad.status_code, "must begin with https://" in bad.content.decode()) == (400, True)
    page = client.post(base, {"url": receiver.url, "kinds": ["run"]}).content.decode()
    webhook = Webhook.objects.get()
    assert secret_of(webhook) in page
    assert secret_of(webhook) not in client.get(f"{base}/{webhook.uid}").content.decode()
    assert client.post(f"{base}/{webhook.uid}/test").status_code == 302
    receiver.answers = [404]
    deliver(webhook)
    assert "answered 404" in client.get(f"{base}/{webhook.uid}").content.decode()
    assert client.post(f"{base}/{webhook.uid}/remove").status_code == 302
    assert "/hook" not in "".join(AuditEvent.objects.values_list("reason", flat=True))


def test_a_workspace_has_a_bounded_number_of_webhooks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "WEBHOOKS_MAX", 0)
    refused(Caller(world, Role.ADMIN).post(f"{WORKSPACE}/webhooks", {"url": "https://a.example"}), 409, "CONFLICT")
    with pytest.raises(ValidationError):
        create_webhook(world.access(Role.ADMIN), "", [], timezone.now())
