"""Signing a program in by a code that a person approves, and how often anybody may try."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from django.conf import settings
from django.contrib.auth import get_user
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from astraconsole import limits
from astraconsole.errors import LoginDenied, LoginExpired, NotFound, TooManyRequests
from astraconsole.tenancy import device
from astraconsole.tenancy.forms import FAILED_ADDRESS, FAILED_PAIR
from astraconsole.tenancy.models import ApiToken, DeviceLogin, User
from astraconsole.tenancy.services import authenticate_token
from tests.test_tenancy import person

pytestmark = pytest.mark.django_db
NOW = timezone.now()
HERE = "10.0.0.7"
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def nothing_counted_yet() -> None:
    client = redis.Redis.from_url(settings.REDIS_URL)
    if keys := client.keys("astra:limit:*"):
        client.delete(*keys)
    client.close()


def begin(now: datetime = NOW, address: str = HERE) -> device.Begun:
    return device.begin("laptop", "astra 0.1.0", address, now)


def post(path: str, body: Any, client: Client | None = None) -> Any:
    return (client or Client()).post(f"/api/v1/device/{path}", json.dumps(body), content_type="application/json")


def signed_in(user: User, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(user)
    return client


def test_a_login_goes_from_the_code_over_the_approval_to_a_token_named_after_the_host() -> None:
    begun = post("code", {"host": "laptop", "program": "astra 0.1.0"})
    assert begun.status_code == 201
    codes = begun.json()
    assert post("token", {"device_code": codes["device_code"]}).status_code == 202
    ada = person("ada")
    page = signed_in(ada).get("/device", {"code": codes["user_code"]}).content.decode()
    assert "laptop" in page
    assert "127.0.0.1" in page
    assert DeviceLogin.objects.get().user is None  # looking decides nothing
    answer = signed_in(ada).post("/device", {"code": codes["user_code"], "decision": "approve"}, follow=True)
    assert "Approved" in answer.content.decode()
    secret = post("token", {"device_code": codes["device_code"]}).json()["token"]
    assert authenticate_token(f"Bearer {secret}") == ada
    assert ApiToken.objects.get().name == "laptop"


def test_a_token_is_fetched_once_only() -> None:
    begun = begin()
    device.decide(person("ada"), begun.user_code, True, HERE, NOW)
    assert device.collect(begun.device_code, NOW)
    with pytest.raises(LoginExpired):
        device.collect(begun.device_code, NOW)
    assert ApiToken.objects.count() == 1


def test_a_denied_login_gives_no_token() -> None:
    begun = begin()
    signed_in(person("ada")).post("/device", {"code": begun.user_code, "decision": "deny"})
    with pytest.raises(LoginDenied):
        device.collect(begun.device_code, NOW)
    assert not ApiToken.objects.exists()


def test_a_decision_is_final() -> None:
    begun = begin()
    device.decide(person("ada"), begun.user_code, False, HERE, NOW)
    with pytest.raises(NotFound):
        device.decide(person("sam"), begun.user_code, True, HERE, NOW)


def test_codes_expire_undecided_and_approved() -> None:
    undecided, approved = begin(), begin()
    ada = person("ada")
    device.decide(ada, approved.user_code, True, HERE, NOW)
    later = NOW + device.LIFETIME
    with pytest.raises(NotFound):
        device.find(ada, undecided.user_code, HERE, later)
    for begun in (undecided, approved):
        with pytest.raises(LoginExpired):
            device.collect(begun.device_code, later)


def test_whoever_was_deactivated_after_approving_gets_no_token() -> None:
    begun, ada = begin(), person("ada")
    device.decide(ada, begun.user_code, True, HERE, NOW)
    User.objects.filter(pk=ada.pk).update(is_active=False)
    with pytest.raises(LoginDenied):
        device.collect(begun.device_code, NOW)


def test_neither_code_is_kept_and_old_logins_go() -> None:
    begun = begin()
    kept = str(DeviceLogin.objects.values().get())
    for code in (begun.device_code, begun.user_code, begun.user_code.replace("-", "")):
        assert code not in kept
    begin(NOW + timedelta(days=2))
    assert DeviceLogin.objects.count() == 1


@given(st.randoms())
def test_a_code_is_read_however_it_is_typed(random: Any) -> None:
    letters = "".join(random.choice(device.LETTERS) for _ in range(8))
    code = f"{letters[:4]}-{letters[4:]}"
    for typed in (code, letters, f" {letters[:4].lower()} - {letters[4:]}"):
        assert device.as_shown(typed) == code
    assert not set(letters) & set("AEIOUVY")


def test_wrong_codes_are_limited_for_a_person_and_right_ones_are_not() -> None:
    begun, ada = begin(), person("ada")
    for _ in range(device.WRONG_BY_USER.tries):
        with pytest.raises(NotFound):
            device.find(ada, "BBBB-BBBB", HERE, NOW)
    with pytest.raises(TooManyRequests, match="too many wrong codes: try again in 10 minutes"):
        device.find(ada, begun.user_code, HERE, NOW)
    page = signed_in(ada).get("/device", {"code": begun.user_code})
    assert page.status_code == 429
    assert "Too many wrong codes" in page.content.decode()
    assert device.find(person("sam"), begun.user_code, HERE, NOW)


def test_wrong_codes_are_limited_for_an_address_whoever_types_them() -> None:
    people = [person(f"p{number}") for number in range(4)]
    for number in range(device.WRONG_FROM_ADDRESS.tries):
        with pytest.raises(NotFound):
            device.find(people[number % 4], "BBBB-BBBB", HERE, NOW)
    with pytest.raises(TooManyRequests):
        device.find(person("new"), "BBBB-BBBB", HERE, NOW)


def test_logins_are_limited_for_an_address_and_the_answer_says_when() -> None:
    for _ in range(device.BEGUN.tries):
        begin(address="127.0.0.1")
    refused = post("code", {"host": "laptop", "program": "x"})
    assert refused.status_code == 429
    assert refused.json()["code"] == "TOO_MANY_REQUESTS"
    assert 0 < int(refused["Retry-After"]) <= device.BEGUN.seconds
    assert begin(address="10.9.9.9")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"host": "laptop"}, "VALIDATION_ERROR"),
        ({"host": "", "program": "x"}, "VALIDATION_ERROR"),
        ({"host": "x" * 101, "program": "x"}, "VALIDATION_ERROR"),
        ({"host": "\x1b[2J", "program": "x"}, "VALIDATION_ERROR"),
        ({"host": 5, "program": "x"}, "VALIDATION_ERROR"),
        ({"host": "x", "program": "x", "more": "x"}, "UNKNOWN_FIELD"),
        ([], "VALIDATION_ERROR"),
    ],
)
def test_a_login_that_is_begun_wrongly_is_refused(body: Any, code: str) -> None:
    answer = post("code", body)
    assert (answer.status_code, answer.json()["code"]) == (400, code)


def test_the_page_leads_through_the_sign_in_back_to_the_code_and_a_forged_form_decides_nothing() -> None:
    begun = begin()
    assert Client().get("/device", {"code": "QWRT-PLKM"}).url == "/sign-in?next=%2Fdevice%3Fcode%3DQWRT-PLKM"
    forger = signed_in(person("ada"), enforce_csrf_checks=True)
    assert forger.post("/device", {"code": begun.user_code, "decision": "approve"}).status_code == 403
    assert DeviceLogin.objects.get().user is None


def test_a_wrong_code_is_said_beside_the_field() -> None:
    page = signed_in(person("ada")).get("/device", {"code": "BBBB-BBBB"})
    assert page.status_code == 404
    assert "No login waits under this code" in page.content.decode()


def test_who_am_i_and_the_end_of_the_token_that_asks() -> None:
    begun, ada = begin(), person("ada")
    device.decide(ada, begun.user_code, True, HERE, NOW)
    bearer = {"HTTP_AUTHORIZATION": f"Bearer {device.collect(begun.device_code, NOW)}"}
    document = Client().get("/api/v1/whoami", **bearer).json()
    assert (document["username"], document["token"]["name"], document["workspaces"]) == ("ada", "laptop", [])
    assert Client().delete("/api/v1/token", **bearer).status_code == 204
    assert Client().get("/api/v1/whoami", **bearer).status_code == 401


# ---- the sign-in form ----


def sign_in(name: str, password: str, path: str = "/sign-in", address: str = HERE) -> tuple[int, str, Client]:
    client = Client(REMOTE_ADDR=address)
    answer = client.post(path, {"username": name, "password": password})
    return answer.status_code, answer.content.decode(), client


@pytest.fixture
def ada() -> User:
    user = person("ada")
    user.set_password(PASSWORD)
    user.save()
    return user


@pytest.mark.parametrize("path", ["/sign-in", "/admin/login/"])
def test_failed_sign_ins_are_limited_and_the_right_password_waits_too(ada: User, path: str) -> None:
    for _ in range(FAILED_PAIR.tries):
        limits.record(FAILED_PAIR, f"{HERE} ada")
    status, page, client = sign_in("Ada", PASSWORD, path)
    assert "Too many failed sign-ins with this name: try again in 10 minutes." in page
    assert status == (429 if path == "/sign-in" else 200)
    assert get_user(client).is_anonymous
    assert sign_in("ada", PASSWORD, "/sign-in", "10.9.9.9")[0] == 302  # nobody is kept out by another


def test_failures_are_counted_and_a_success_forgives_them(ada: User) -> None:
    for _ in range(3):
        assert sign_in("ada", "wrong")[0] == 200
    assert limits._read(limits._key(FAILED_PAIR, f"{HERE} ada")) == 3
    assert limits._read(limits._key(FAILED_ADDRESS, HERE)) == 3
    assert sign_in("ada", PASSWORD)[0] == 302
    assert limits._read(limits._key(FAILED_PAIR, f"{HERE} ada")) == 0
    assert limits._read(limits._key(FAILED_ADDRESS, HERE)) == 3


def test_an_address_that_tries_many_names_is_stopped(ada: User) -> None:
    for _ in range(FAILED_ADDRESS.tries):
        limits.record(FAILED_ADDRESS, HERE)
    assert sign_in("ada", PASSWORD)[0] == 429


def test_without_redis_people_still_sign_in(ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    away = redis.Redis.from_url("redis://127.0.0.1:1/0", socket_timeout=1)
    monkeypatch.setattr(limits, "_redis", away)
    assert sign_in("ada", "wrong")[0] == 200
    assert sign_in("ada", PASSWORD)[0] == 302
