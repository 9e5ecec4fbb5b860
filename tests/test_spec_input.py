"""The specification against anything that can be sent: all of it is accepted, or refused with a typed error."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraconsole.errors import AstraError, NameNotDnsSafe, UnknownField, ValidationError
from runs.spec import RunRequest, load_spec, parse_run
from tests.bodies import RESNET50, body, fields, refusal


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "ok\udfff"])
def test_text_that_the_database_refuses_is_refused_wherever_it_stands(text: str) -> None:
    error = refusal(
        body(
            ("metadata.labels", {"a": text}),
            ("spec.task_template.args", [text]),
            ("spec.task_template.env", {"A": text, f"B{text}": "1"}),
            (f"spec.{text}", 1),
        )
    )
    assert fields(error) == [
        "metadata.labels.a",
        "spec.task_template.args[0]",
        "spec.task_template.env.A",
        "spec.task_template.env",
        "spec",
    ]
    json.dumps(error.as_dict()).encode()


def test_more_arguments_than_a_process_can_take_are_refused() -> None:
    assert fields(refusal(body(("spec.task_template.args", ["x" * 131_072])))) == ["spec.task_template.args[0]"]
    assert fields(refusal(body(("spec.task_template.args", ["x" * 131_000] * 9)))) == ["spec.task_template"]


def test_an_answer_stays_small_whatever_is_sent() -> None:
    error = refusal(body(("spec", {f"unknown{number}": 1 for number in range(20_000)} | {"k" * 100_000: 1})))
    assert len(error.detail) == 500
    assert len(json.dumps(error.as_dict())) < 100_000


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8) | st.just(10**400),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=8), inner, max_size=3)
    ),
    max_leaves=12,
)
_PATHS = [
    "metadata",
    "metadata.name",
    "metadata.labels",
    "spec",
    *(
        f"spec.{name}"
        for name in (
            "machines",
            "node_selection",
            "array",
            "worker_groups",
            "start",
            "on_failure",
            "priority",
            "code",
            "engine",
        )
    ),
    "spec.task_template",
    *(
        f"spec.task_template.{name}"
        for name in ("image", "command", "args", "env", "user", "working_dir", "time_limit_seconds", "probes")
    ),
    *(
        f"spec.task_template.{name}"
        for name in ("secret_refs", "datavolume_refs", "requested_resources", "pull_policy", "foo")
    ),
    *(
        f"spec.task_template.requested_resources.{name}"
        for name in ("cpu_cores", "memory_bytes", "per_gpu", "node_fraction", "gpu_requests")
    ),
    *(f"spec.{name}" for name in ("node_selection.count", "node_selection.labels", "array.count", "array.parallelism")),
]


@given(_json)
def test_any_json_is_accepted_or_refused_with_a_typed_error(value: object) -> None:
    check_answer(value)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(_PATHS), _json, min_size=1, max_size=4))
def test_a_run_with_any_values_in_its_fields_is_accepted_or_refused_with_a_typed_error(
    changes: dict[str, object],
) -> None:
    result = copy.deepcopy(RESNET50)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place: Any = result
        for parent in parents:
            if not isinstance(place.get(parent), dict):
                place[parent] = {}
            place = place[parent]
        place[last] = value
    check_answer(result)


def check_answer(value: object) -> None:
    request, error = outcome(value)
    if request is None:
        assert isinstance(error, UnknownField | ValidationError | NameNotDnsSafe)
        assert error.message
        assert error.detail
        json.dumps(error.as_dict()).encode()
    else:
        stored = request.spec.stored()
        assert "\\u0000" not in json.dumps(stored, allow_nan=False)
        assert load_spec(json.loads(json.dumps(stored))) == request.spec


def outcome(value: object) -> tuple[RunRequest | None, AstraError | None]:
    try:
        return parse_run(value), None
    except AstraError as error:
        return None, error


def test_deep_nesting_is_refused() -> None:
    deep: Any = {}
    for _ in range(900):
        deep = {"a": [deep]}
    assert isinstance(refusal(deep), UnknownField)
    assert isinstance(refusal(body(("spec.task_template.env", {"A": deep}))), ValidationError)


def test_keys_that_are_no_text_are_refused() -> None:
    assert isinstance(refusal({1: 2, None: {}}), ValidationError)
