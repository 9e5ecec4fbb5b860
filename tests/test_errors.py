"""One shape of an error, whoever produced it: for programs, for a page's own scripts, and for people."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET
from hypothesis import given
from hypothesis import strategies as st

from astraconsole import errors, web
from astraconsole.errors import AstraError, BadRequest, MalformedBody, TooLarge, TooManyRequests, Unauthenticated
from astraconsole.json_bodies import read_json, read_reason
from astraconsole.urls import handler400 as handler400
from astraconsole.urls import handler403 as handler403
from astraconsole.urls import handler404 as handler404
from astraconsole.urls import handler500 as handler500
from astraconsole.urls import urlpatterns as console_urls

RAISED: dict[str, tuple[Exception, int, str]] = {
    "conflict": (errors.Conflict("it ended"), 409, "CONFLICT"),
    "gone": (Http404("no such thing"), 404, "NOT_FOUND"),
    "denied": (PermissionDenied("not yours"), 403, "FORBIDDEN"),
    "odd": (SuspiciousOperation("odd"), 400, "BAD_REQUEST"),
    "away": (OperationalError("connection refused"), 503, "UNAVAILABLE"),
    "defect": (ZeroDivisionError("a secret inside"), 500, "INTERNAL"),
}


@csrf_exempt
def fails(request: HttpRequest, how: str) -> HttpResponse:
    raise RAISED[how][0]


@csrf_exempt
@require_GET
def reads(request: HttpRequest) -> HttpResponse:
    return HttpResponse("read")


@csrf_exempt
def parses(request: HttpRequest) -> HttpResponse:
    return HttpResponse(json.dumps(read_json(request)))


urlpatterns = [
    path("api/test/fails/<how>", fails),
    path("api/test/reads", reads),
    path("api/test/parses", parses),
    path("test/fails/<how>", fails),
    path("test/reads", reads),
    path("", include(console_urls)),
]
pytestmark = pytest.mark.urls("tests.test_errors")


@pytest.fixture
def client() -> Client:
    return Client(raise_request_exception=False)


def error_classes(base: type[AstraError] = AstraError) -> Iterator[type[AstraError]]:
    yield base
    for child in base.__subclasses__():
        yield from error_classes(child)


def assert_shape(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/json"
    body = answer.json()
    assert body["code"] == code
    assert body["message"]
    assert set(body) <= {"code", "message", "detail"}
    for entry in body.get("detail", []):
        assert set(entry) == {"field", "rule"}
    return body


# ---- every producer, for programs ----


@pytest.mark.parametrize("kind", list(error_classes()), ids=lambda kind: kind.__name__)
def test_every_error_class_is_rendered_in_the_one_shape(kind: type[AstraError]) -> None:
    error = kind("a sentence", retry_after=5) if kind is TooManyRequests else kind("a sentence")
    error.detail = [{"field": "spec.machines", "rule": "must be positive"}]
    answer = web.error_response(RequestFactory().get("/api/v1/x"), error)
    assert answer.status_code == kind.status
    assert json.loads(answer.content) == {
        "code": kind.code,
        "message": "a sentence",
        "detail": [{"field": "spec.machines", "rule": "must be positive"}],
    }


def test_each_code_means_one_class_and_is_spelled_in_one_file() -> None:
    spelled = [kind for kind in error_classes() if "code" in vars(kind)]
    codes = [kind.code for kind in spelled]
    assert sorted(codes) == sorted(set(codes))
    assert {kind.__module__ for kind in spelled} == {errors.__name__}


@pytest.mark.parametrize("how", RAISED)
def test_whatever_an_api_view_raises_has_the_shape(client: Client, how: str) -> None:
    _, status, code = RAISED[how]
    assert_shape(client.get(f"/api/test/fails/{how}"), status, code)


def test_a_defect_shows_an_id_that_the_log_has_and_nothing_else(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    body = assert_shape(client.get("/api/test/fails/defect"), 500, "INTERNAL")
    number = body["message"].split()[-1]
    assert "secret" not in body["message"]
    assert any(number in record.getMessage() and record.exc_info for record in caplog.records)


def test_an_error_without_detail_has_no_detail_field(client: Client) -> None:
    assert "detail" not in assert_shape(client.get("/api/test/fails/conflict"), 409, "CONFLICT")


@pytest.mark.parametrize("address", ["/api", "/api/", "/api/v1/nothing", "/api/v2/x", "/agent/v1/nothing"])
@pytest.mark.parametrize("method", ["get", "post", "delete"])
def test_an_unknown_address_for_programs_is_not_found_as_json(client: Client, address: str, method: str) -> None:
    assert_shape(getattr(client, method)(address), 404, "NOT_FOUND")


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_a_wrong_method_is_told_with_what_works(client: Client, method: str) -> None:
    answer = getattr(client, method)("/api/test/reads")
    assert_shape(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer["Allow"] == "GET"


def test_a_slash_at_the_end_of_an_api_address_changes_nothing(client: Client) -> None:
    assert client.get("/api/test/reads/").content == b"read"


@pytest.mark.parametrize("address", ["/api/test/re%00ads", "/test/re%00ads"])
def test_a_nul_in_an_address_is_not_found(client: Client, address: str) -> None:
    assert client.get(address).status_code == 404


def test_a_nul_in_a_parameter_is_refused(client: Client) -> None:
    assert_shape(client.get("/api/test/reads?name=a%00b"), 400, "BAD_REQUEST")


def test_a_host_that_is_not_ours_is_refused_in_the_shape(client: Client) -> None:
    answer = client.get("/api/test/reads", headers={"host": "evil.example"})
    assert_shape(answer, 400, "BAD_REQUEST")
    assert "ALLOWED_HOSTS" in answer.json()["message"]


def test_unauthenticated_names_the_scheme(client: Client) -> None:
    answer = web.error_response(RequestFactory().get("/api/v1/x"), Unauthenticated("send a token"))
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")


def test_a_nul_in_any_field_of_a_form_is_refused(client: Client) -> None:
    for form in ({"reason": "a\0b"}, {"a\0b": "reason"}, {"run": ["a", "b\0"]}):
        assert client.post("/test/reads", form).status_code == 400


# ---- bodies ----


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nope",
        b"{'a': 1}",
        b'{"a": 1} x',
        b"\xff\xfe",
        b'{"a": "\xc3"}',
        b'{"a": "\x00"}',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": 1' + b"0" * 5000 + b"}",
        b'{"a": "\\ud800"}',
        b'{"a": "\\uDFFF"}',
        b'{"\\ud800": 1}',
        b'{"a": 1, "a": 2}',
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    ],
    ids=lambda body: body[:20].decode("latin-1"),
)
def test_a_body_that_is_not_sound_json_is_malformed(client: Client, body: bytes) -> None:
    answer = client.post("/api/test/parses", body, content_type="application/json")
    message = assert_shape(answer, 400, "MALFORMED_BODY")["message"]
    assert len(message) < 300


def test_a_body_over_the_limit_is_too_large(client: Client) -> None:
    body = b'"' + b"x" * settings.DATA_UPLOAD_MAX_MEMORY_SIZE + b'"'
    assert_shape(client.post("/api/test/parses", body, content_type="application/json"), 413, "TOO_LARGE")


def test_a_body_at_the_limit_is_read(client: Client) -> None:
    body = b'"' + b"x" * (settings.DATA_UPLOAD_MAX_MEMORY_SIZE - 2) + b'"'
    assert client.post("/api/test/parses", body, content_type="application/json").status_code == 200


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/x-www-form-urlencoded", ""])
def test_the_content_type_of_a_body_does_not_matter(client: Client, content_type: str) -> None:
    answer = client.generic("POST", "/api/test/parses", b'{"a": "\\ud83d\\ude00"}', content_type=content_type)
    assert json.loads(answer.content) == {"a": "😀"}


def body_request(body: bytes) -> HttpRequest:
    return RequestFactory().generic("POST", "/api/v1/x", body)


@given(st.binary(max_size=200))
def test_any_bytes_are_json_or_malformed(body: bytes) -> None:
    try:
        value = read_json(body_request(body))
    except MalformedBody:
        return
    assert json.loads(body) == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=5) | st.dictionaries(st.text(), children, max_size=5),
)


@given(JSON)
def test_sound_json_is_read_as_it_is(value: object) -> None:
    assert read_json(body_request(json.dumps(value, ensure_ascii=True).encode())) == value


@given(JSON)
def test_a_reason_is_text_or_a_typed_refusal(value: object) -> None:
    for body in (value, {"reason": value}):
        try:
            reason = read_reason(body_request(json.dumps(body).encode()))
        except BadRequest:
            continue
        assert isinstance(reason, str)
        assert "\0" not in reason


def test_no_body_is_no_reason_and_a_large_one_is_refused() -> None:
    assert read_reason(body_request(b"")) == ""
    assert read_reason(body_request(b'{"reason": "  lunch "}')) == "lunch"
    with pytest.raises(TooLarge):
        read_reason(body_request(b" " * (settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)))


# ---- pages ----


@pytest.mark.parametrize("how", RAISED)
def test_whatever_a_page_raises_is_a_page_that_says_so(client: Client, how: str) -> None:
    _, status, code = RAISED[how]
    answer = client.get(f"/test/fails/{how}")
    text = answer.content.decode()
    assert answer.status_code == status
    assert answer["Content-Type"].startswith("text/html")
    assert code in text
    assert "secret" not in text


def test_an_unknown_address_and_a_wrong_method_are_pages_too(client: Client) -> None:
    unknown, wrong = client.get("/nothing/here"), client.post("/test/reads")
    assert (unknown.status_code, wrong.status_code) == (404, 405)
    assert b"NOT_FOUND" in unknown.content
    assert b"METHOD_NOT_ALLOWED" in wrong.content


HTMX = {"HX-Request": "true", "HX-Current-URL": "http://testserver/o/acme/w/vision/runs?state=all"}


@pytest.mark.parametrize("how", RAISED)
def test_a_fragment_that_fails_answers_the_pages_script_in_the_shape(client: Client, how: str) -> None:
    _, status, code = RAISED[how]
    assert_shape(client.get(f"/test/fails/{how}", headers=HTMX), status, code)


def test_a_boosted_link_that_fails_is_a_page(client: Client) -> None:
    answer = client.get("/test/fails/conflict", headers={**HTMX, "HX-Boosted": "true"})
    assert answer["Content-Type"].startswith("text/html")


def test_a_fragment_asked_for_after_the_session_ended_leads_to_signing_in_and_back(client: Client) -> None:
    answer = client.get("/account/tokens", headers=HTMX)
    assert answer.status_code == 401
    assert answer["HX-Redirect"] == "/sign-in?next=%2Fo%2Facme%2Fw%2Fvision%2Fruns%3Fstate%3Dall"


def test_error_pages_need_no_database_and_no_session(client: Client) -> None:
    # No database mark on this module's page tests: touching it would fail them.
    assert b"Back to the console" in client.get("/test/fails/away").content
