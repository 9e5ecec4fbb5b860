"""A run's specification: what is accepted, and every finding at once in the documented errors."""

import base64
from typing import Any

import pytest

from astraconsole.errors import NameNotDnsSafe, UnknownField, ValidationError
from runs.spec import load_spec, parse_run
from tests import archives
from tests.bodies import CPU, GIB, RESNET50, body, fields, refusal


def test_the_documented_run_is_accepted_and_stored_as_it_was_given() -> None:
    request = parse_run(RESNET50)
    assert request.metadata.name == "resnet50"
    assert request.spec.stored() == RESNET50["spec"]
    assert load_spec(request.spec.stored()) == request.spec


def test_all_that_works_is_accepted_together() -> None:
    request = parse_run(
        body(
            ("metadata.labels", {"team": "vision", "astra.io/cost": "42"}),
            ("spec.array", {"count": 100, "parallelism": 4}),
            ("spec.node_selection", {"pools": ["a100"], "labels": {"zone": "b"}, "names": ["gpu-07"]}),
            ("spec.priority", -5),
            ("spec.on_failure", "FailJob"),
            ("spec.start", "Independent"),
            ("spec.lifetime", "Batch"),
            ("spec.task_template.env", {"A": "quotes \" ' $HOME ; , = \n and 🙂", "EMPTY": ""}),
            ("spec.task_template.args", ["", " ", "$X", "a b"]),
            ("spec.task_template.working_dir", "/workspace"),
            ("spec.task_template.user", "1000:1000"),
            ("spec.task_template.pull_policy", "None"),
            ("spec.task_template.restart_policy", "Always"),
            resources={
                **CPU,
                "cpu_burst": True,
                "shm_bytes": GIB,
                "gpu_requests": {"count": 8, "models": ["H100"], "min_memory_bytes": 80 * GIB},
            },
        )
    )
    template = request.spec.task_template
    assert template.env["A"] == "quotes \" ' $HOME ; , = \n and 🙂"
    assert template.args == ("", " ", "$X", "a b")
    assert template.requested_resources.cpu_milli_of(gpus=8) == 500
    assert request.spec.stated_workers == 100
    assert request.spec.effective_on_failure == "FailJob"


def test_defaults_are_the_documented_ones() -> None:
    spec = parse_run(RESNET50).spec
    assert (spec.task_template.restart_policy, spec.task_template.pull_policy) == ("OnFailure", "IfNotPresent")
    assert (spec.effective_start, spec.effective_on_failure, spec.effective_lifetime) == (
        "Independent",
        "RestartTask",
        "Batch",
    )
    assert spec.priority == 0
    assert spec.stated_workers is None


def test_per_gpu_amounts_grow_with_a_workers_gpus() -> None:
    resources = parse_run(RESNET50).spec.task_template.requested_resources
    assert resources.cpu_milli_of(gpus=8) == 64_000
    assert resources.memory_bytes_of(gpus=8) == 512 * GIB


def test_every_unknown_field_is_named_at_once() -> None:
    error = refusal(body(("spec.task_template.foo", 1), ("spec.replicas", 3)))
    assert isinstance(error, UnknownField)
    assert error.message == "fields this API does not know: spec.replicas, spec.task_template.foo"


def test_a_single_unknown_field_has_the_documented_message() -> None:
    assert refusal(body(("spec.replicas", 3))).message == "fields this API does not know: spec.replicas"


def test_unknown_fields_are_found_in_every_object() -> None:
    error = refusal(
        body(
            ("kind", "Job"),
            ("metadata.uid", "1"),
            ("spec.array", {"count": 2, "size": 2}),
            ("spec.node_selection", {"pool": "x"}),
            ("spec.worker_groups", [{"name": "a", "count": 1, "task_template": {"imgae": "x"}}]),
            ("spec.task_template.requested_resources.gpu_requests.n", 1),
            ("spec.task_template.requested_resources.per_gpu.cores", 1),
        )
    )
    assert error.message.removeprefix("fields this API does not know: ").split(", ") == [
        "kind",
        "metadata.uid",
        "spec.array.size",
        "spec.node_selection.pool",
        "spec.task_template.requested_resources.gpu_requests.n",
        "spec.task_template.requested_resources.per_gpu.cores",
        "spec.worker_groups[0].task_template.imgae",
    ]


def test_every_broken_rule_is_one_entry_even_beside_unknown_fields() -> None:
    error = refusal(
        body(
            ("metadata.name", "-x"),
            ("spec.replicas", 1),
            ("spec.priority", "high"),
            ("spec.task_template.image", ""),
            ("spec.task_template.time_limit_seconds", 59),
            ("spec.task_template.args", ["ok", 5]),
        )
    )
    assert isinstance(error, UnknownField)
    assert sorted(fields(error)) == [
        "metadata.name",
        "spec.priority",
        "spec.replicas",
        "spec.task_template.args[1]",
        "spec.task_template.image",
        "spec.task_template.time_limit_seconds",
    ]


@pytest.mark.parametrize(
    ("path", "value", "rule"),
    [
        ("spec.task_template.time_limit_seconds", 59, "must be at least 60"),
        ("spec.task_template.time_limit_seconds", 366 * 86400 + 1, "must be at most 31622400"),
        ("spec.task_template.time_limit_seconds", True, "must be a whole number"),
        ("spec.task_template.time_limit_seconds", 3600.0, "must be a whole number"),
        ("spec.task_template.time_limit_seconds", "2h", "must be a whole number"),
        ("spec.task_template.args", "a b", "must be a list"),
        ("spec.task_template.env", ["A=1"], "must be an object"),
        ("spec.task_template.working_dir", "code", "must be an absolute path without .."),
        ("spec.task_template.working_dir", "/a/../b", "must be an absolute path without .."),
        (
            "spec.task_template.image",
            "--privileged",
            "must be an image reference, such as python:3.11 or registry.example.com/team/train:1",
        ),
        ("spec.task_template.pull_policy", "Never", "must be one of 'IfNotPresent', 'Always' or 'None'"),
        ("spec.task_template.restart_policy", "never", "must be one of 'OnFailure', 'Always' or 'Never'"),
        ("spec.task_template.user", "root; rm", "must be a user, or user:group, by name or number"),
        ("spec.task_template.command", "", "must not be empty"),
        ("spec.task_template", [], "must be an object"),
        ("spec.machines", 0, "must be at least 1"),
        ("spec.machines", -1, "must be at least 1"),
        ("spec.machines", 10**400, "must be at most 10000"),
        ("spec.priority", 1.5, "must be a whole number"),
        ("spec.array", {"count": 0}, None),
        ("spec.task_template.requested_resources.per_gpu.cpu_cores", float("nan"), "must be a finite number"),
        ("spec.task_template.requested_resources.per_gpu.cpu_cores", 0, "must be at least 0.001"),
        ("spec.task_template.requested_resources.per_gpu.cpu_cores", 10**400, "must be a number"),
        ("spec.task_template.requested_resources.per_gpu.memory_bytes", 64, "must be at least 1048576"),
        ("spec.task_template.requested_resources.gpu_requests.count", 0, "must be at least 1"),
        ("metadata.name", "x" * 58, "must be at most 57 characters"),
        ("metadata.name", "a/b", "must be ASCII letters, digits, - and _, with no - at either end"),
        ("metadata.name", "naïve", "must be ASCII letters, digits, - and _, with no - at either end"),
        ("metadata.name", "", "must be ASCII letters, digits, - and _, with no - at either end"),
        ("metadata.name", "line\n", "must be ASCII letters, digits, - and _, with no - at either end"),
        ("metadata.name", None, "must be text"),
    ],
)
def test_a_broken_rule_names_its_field_and_the_rule(path: str, value: object, rule: str | None) -> None:
    error = refusal(body((path, value)))
    assert isinstance(error, ValidationError)
    assert error.detail[0]["field"].startswith(path)
    assert rule is None or error.detail[0]["rule"] == rule


@pytest.mark.parametrize("name", ["A=B", "", "1A", "a b", "A\n", "é"])
def test_a_bad_environment_name_is_refused(name: str) -> None:
    assert fields(refusal(body(("spec.task_template.env", {name: "x"})))) == [f"spec.task_template.env{'.' + name}"]


@pytest.mark.parametrize(
    ("resources", "field"),
    [
        ({}, ""),
        ({"gpu_requests": {"count": 1}}, ""),
        ({"cpu_cores": 1}, ".memory_bytes"),
        ({"memory_bytes": GIB}, ".cpu_cores"),
        ({**CPU, "node_fraction": 0.5}, ""),
        ({**CPU, "per_gpu": {"cpu_cores": 1, "memory_bytes": GIB}, "gpu_requests": {"count": 1}}, ""),
        ({"per_gpu": {"cpu_cores": 1, "memory_bytes": GIB}}, ".per_gpu"),
        ({"node_fraction": 0}, ".node_fraction"),
        ({"node_fraction": 1.01}, ".node_fraction"),
        ({"node_fraction": 0.5, "cpu_burst": True}, ".cpu_burst"),
        ({**CPU, "gpu_requests": {"models": ["H100"]}}, ".gpu_requests.count"),
    ],
)
def test_resources_have_exactly_one_form(resources: dict[str, Any], field: str) -> None:
    assert fields(refusal(body(resources=resources))) == [f"spec.task_template.requested_resources{field}"]


@pytest.mark.parametrize("resources", [CPU, {"node_fraction": 1}, {**CPU, "gpu_requests": {"count": 3}}])
def test_each_resource_form_is_accepted(resources: dict[str, Any]) -> None:
    assert (
        parse_run(body(resources=resources)).spec.task_template.requested_resources.model_dump(
            exclude_unset=True, mode="json"
        )
        == resources
    )


def secret(**variables: str) -> dict[str, Any]:
    return {"external_secret_name": "hf", "env_vars": variables}


@pytest.mark.parametrize(
    ("template", "group", "detail"),
    [
        (
            {"env": {"A": "1"}, "secret_refs": [secret(token="A")]},
            {},
            ("spec.task_template.secret_refs[0].env_vars.token", "sets A, which spec.task_template.env sets as well"),
        ),
        (
            {"secret_refs": [secret(x="A"), secret(x="B", y="A")]},
            {},
            (
                "spec.task_template.secret_refs[1].env_vars.y",
                "sets A, which spec.task_template.secret_refs[0].env_vars.x sets as well",
            ),
        ),
        (
            {"secret_refs": [secret(token="A")]},
            {"env": {"A": "1"}},
            (
                "spec.worker_groups[0].task_template.secret_refs[0].env_vars.token",
                "sets A, which spec.worker_groups[0].task_template.env sets as well",
            ),
        ),
    ],
)
def test_a_variable_has_one_origin(template: Any, group: Any, detail: tuple[str, str]) -> None:
    changes = [(f"spec.task_template.{name}", value) for name, value in template.items()]
    groups = [{"name": "a", "count": 1, "task_template": group}]
    error = refusal(body(*changes, *([("spec.worker_groups", groups)] if group else [])))
    assert [(entry["field"], entry["rule"]) for entry in error.detail] == [detail]


def test_a_secret_may_take_the_place_of_an_injected_variable_and_appear_twice() -> None:
    refs = [secret(rank="RANK"), {"external_secret_name": "hf", "mount_path": "/s"}]
    assert parse_run(body(("spec.task_template.secret_refs", refs))).spec.task_template.secret_refs[1].env_vars == {}


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("spec.code", "not base64!", "spec.code"),
        ("spec.code", base64.b64encode(b"PK zip").decode(), "spec.code"),
        ("spec.code", base64.b64encode(b"\x1f\x8b" + bytes(900 * 1024)).decode(), "spec.code"),
        ("spec.code", base64.b64encode(archives.packed({"../up": ""})).decode(), "spec.code"),
        ("spec.code", 7, "spec.code"),
        ("spec.code", {"sha256": "abc"}, "spec.code.sha256"),
        ("spec.code", {}, "spec.code.sha256"),
        ("spec.task_template.secret_refs", [{"external_secret_name": "x"}], "spec.task_template.secret_refs[0]"),
        (
            "spec.task_template.registry_secret_ref",
            {"external_secret_name": "a/b"},
            "spec.task_template.registry_secret_ref.external_secret_name",
        ),
        (
            "spec.task_template.secret_refs",
            [{"external_secret_name": "x", "mount_path": "/"}],
            "spec.task_template.secret_refs[0].mount_path",
        ),
        (
            "spec.task_template.secret_refs",
            [{"external_secret_name": "x", "mount_path": "/s"}, {"external_secret_name": "y", "mount_path": "/s/"}],
            "spec.task_template.secret_refs[1].mount_path",
        ),
        ("spec.worker_groups", [{"name": "a", "count": 1}, {"name": "a", "count": 1}], "spec.worker_groups"),
        (
            "spec.task_template.datavolume_refs",
            [{"name": "a b", "mount_path": "/d"}],
            "spec.task_template.datavolume_refs[0].name",
        ),
        ("spec.task_template.model_refs", [{"name": "/x"}], "spec.task_template.model_refs[0].name"),
        ("spec.worker_groups", [{"name": "-", "count": 1}], "spec.worker_groups[0].name"),
        ("spec.worker_groups", [{"name": "a", "count": 9999}, {"name": "b", "count": 9999}], "spec.worker_groups"),
    ],
)
def test_shapes_are_checked(path: str, value: Any, field: str) -> None:
    assert field in [entry["field"] for entry in refusal(body((path, value))).detail]


def test_the_console_insists_on_lower_case() -> None:
    assert parse_run(body(("metadata.name", "ResNet"))).metadata.name == "ResNet"
    assert refusal(body(("metadata.name", "ResNet")), console=True).detail == [
        {"field": "metadata.name", "rule": "must be lower case"}
    ]


@pytest.mark.parametrize("name", ["a", "a_b-c", "9", "x" * 57, "a__", "A-1"])
def test_a_legal_name_is_accepted(name: str) -> None:
    assert parse_run(body(("metadata.name", name), ("spec.array", {"count": 10_000}))).metadata.name == name


def test_a_name_that_is_no_host_name_has_its_own_code() -> None:
    error = refusal(body(("metadata.name", "_x")))
    assert isinstance(error, NameNotDnsSafe)
    assert fields(error) == ["metadata.name"]


def test_code_is_accepted_packed_or_by_its_digest() -> None:
    text = base64.b64encode(archives.packed({"train.py": ""})).decode()
    assert parse_run(body(("spec.code", text))).spec.code == text
    kept = {"sha256": "0" * 64, "size_bytes": 12}
    assert parse_run(body(("spec.code", kept))).spec.stored()["code"] == kept


def test_a_broken_archive_is_refused_in_one_sentence_about_its_field() -> None:
    text = base64.b64encode(archives.packed({"ok": "", "../up": ""})).decode()
    [entry] = refusal(body(("spec.code", text))).detail
    assert entry == {"field": "spec.code", "rule": "must stay inside its folder: '../up' holds .."}


@pytest.mark.parametrize(
    ("refs", "field", "rule"),
    [
        (
            {"datavolume_refs": [{"name": "a", "mount_path": "/"}]},
            "datavolume_refs[0]",
            "must not be the root folder",
        ),
        (
            {"datavolume_refs": [{"name": "a", "mount_path": "//./"}]},
            "datavolume_refs[0]",
            "must not be the root folder",
        ),
        (
            {"datavolume_refs": [{"name": "a", "mount_path": "/d"}, {"name": "b", "mount_path": "/d/"}]},
            "datavolume_refs[1]",
            "is where datavolume_refs[0] is mounted already",
        ),
        ({"model_refs": [{"name": "a"}, {"name": "b"}]}, "model_refs[1]", "is where model_refs[0] is mounted already"),
        (
            {"model_refs": [{"name": "a", "mount_path": "/workspace"}]},
            "model_refs[0]",
            "is where the run's code is mounted already",
        ),
        (
            {"datavolume_refs": [{"name": "a", "mount_path": "/a/../b"}]},
            "datavolume_refs[0]",
            "must be an absolute path without ..",
        ),
    ],
)
def test_each_place_in_the_container_is_one_things(refs: Any, field: str, rule: str) -> None:
    code = base64.b64encode(archives.packed({"train.py": ""})).decode()
    asked = body(("spec.code", code), *((f"spec.task_template.{name}", value) for name, value in refs.items()))
    assert refusal(asked).detail == [{"field": f"spec.task_template.{field}.mount_path", "rule": rule}]


def test_a_model_is_mounted_at_model_unless_the_run_says_otherwise() -> None:
    parsed = parse_run(body(("spec.task_template.model_refs", [{"name": "llama"}]))).spec
    assert parsed.task_template.model_refs[0].mount_path == "/model"
    assert parsed.stored()["task_template"]["model_refs"] == [{"name": "llama"}]
