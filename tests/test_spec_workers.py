"""A run's workers in its specification: how many, their groups and names, and what becomes of those that fail."""

from typing import Any

import pytest

from astraconsole.errors import NameNotDnsSafe
from runs.spec import load_spec, parse_run, template_of
from tests.bodies import body, fields, refusal


def test_workers_come_from_one_field_only() -> None:
    error = refusal(body(("spec.machines", 2), ("spec.node_selection", {"count": 2}), ("spec.array", {"count": 2})))
    assert fields(error) == ["spec.node_selection.count", "spec.array"]
    assert parse_run(body(("spec.machines", 2), ("spec.node_selection", {"pools": ["a"]}))).spec.stated_workers == 2


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ({"requested_resources": {"cpu_cores": 1}}, "requested_resources.memory_bytes"),
        ({"requested_resources": {}}, "requested_resources"),
        ({"requested_resources": {"per_gpu": {"cpu_cores": 1, "memory_bytes": 2**30}}}, "requested_resources.per_gpu"),
        ({"args": ["x" * 131_000] * 9}, ""),
        ({"env": {f"E{number}": "x" * 131_000 for number in range(9)}}, ""),
    ],
)
def test_a_groups_overrides_follow_the_templates_rules(overrides: Any, field: str) -> None:
    groups = [{"name": "a", "count": 1, "task_template": overrides}]
    path = "spec.worker_groups[0].task_template" + (f".{field}" if field else "")
    assert fields(refusal(body(("spec.worker_groups", groups)))) == [path]


def test_what_a_group_takes_over_counts_towards_its_size() -> None:
    half = {f"E{number}": "x" * 131_000 for number in range(5)}
    groups = [{"name": "a", "count": 1, "task_template": {"args": ["x" * 131_000] * 5}}]
    error = refusal(body(("spec.task_template.env", half), ("spec.worker_groups", groups)))
    assert fields(error) == ["spec.worker_groups[0].task_template"]


def test_workers_of_a_service_do_not_wait_for_others_of_its_array_to_end() -> None:
    service = ("spec.lifetime", "Service")
    array = "spec.array"
    (found,) = refusal(body(service, (array, {"count": 3, "parallelism": 2}))).detail
    assert found["field"] == "spec.array.parallelism"
    assert "contradicts spec.lifetime Service" in found["rule"]
    parse_run(body(service, (array, {"count": 3, "parallelism": 3})))
    parse_run(body((array, {"count": 3, "parallelism": 2})))


@pytest.mark.parametrize(
    ("more", "field", "rule"),
    [
        ({"codes": [0]}, "spec.task_template.retry_exit_codes[0]", "must be at least 1"),
        ({"codes": [256]}, "spec.task_template.retry_exit_codes[0]", "must be at most 255"),
        ({"codes": [75], "policy": "Never"}, "spec.task_template.retry_exit_codes", "contradicts restart_policy Never"),
        (
            {"codes": [75], "on_failure": "FailJob"},
            "spec.task_template.retry_exit_codes",
            "contradicts spec.on_failure",
        ),
    ],
)
def test_exit_codes_that_cost_nothing_have_rules(more: dict[str, Any], field: str, rule: str) -> None:
    changes = [("spec.task_template.retry_exit_codes", more["codes"])]
    changes += [("spec.task_template.restart_policy", more["policy"])] if "policy" in more else []
    changes += [("spec.on_failure", more["on_failure"])] if "on_failure" in more else []
    (found,) = refusal(body(*changes)).detail
    assert found["field"] == field
    assert rule in found["rule"]


@pytest.mark.parametrize(
    ("kind", "probe", "field", "rule"),
    [
        ("liveness", {"period_seconds": 5}, "", "must have exactly one of exec and http"),
        ("liveness", {"exec": {"command": ["a"]}, "http": {"port": 1}}, "", "must have exactly one of exec and http"),
        ("startup", {"exec": {"command": []}}, ".exec.command", "must not be empty"),
        ("startup", {"exec": {"command": "ls"}}, ".exec.command", "must be a list"),
        ("liveness", {"http": {"port": 0}}, ".http.port", "must be at least 1"),
        ("liveness", {"http": {"port": 80, "scheme": "ftp"}}, ".http.scheme", "must be one of 'http' or 'https'"),
        ("readiness", {"http": {"port": 80, "path": "x"}}, ".http.path", "must be the path of a URL"),
        ("readiness", {"http": {"port": 80, "path": "/a b"}}, ".http.path", "must be the path of a URL"),
        ("readiness", {"http": {"port": 80, "path": "/a#b"}}, ".http.path", "must be the path of a URL"),
        ("liveness", {"http": {"port": 80}, "success_threshold": 2}, ".success_threshold", "must be 1"),
        ("startup", {"http": {"port": 80}, "failure_threshold": 0}, ".failure_threshold", "must be at least 1"),
        ("startup", {"http": {"port": 80}, "period_seconds": 0.5}, ".period_seconds", "must be a whole number"),
        (
            "startup",
            {"http": {"port": 80}, "initial_delay_seconds": -1},
            ".initial_delay_seconds",
            "must be at least 0",
        ),
    ],
)
def test_probes_have_rules(kind: str, probe: dict[str, Any], field: str, rule: str) -> None:
    (found,) = refusal(body(("spec.task_template.probes", {kind: probe}))).detail
    assert found["field"] == f"spec.task_template.probes.{kind}{field}"
    assert rule in found["rule"]


def test_a_service_may_list_exit_codes_whatever_its_restart_policy_says() -> None:
    listed = ("spec.task_template.retry_exit_codes", [75, 85])
    asked = parse_run(body(listed, ("spec.lifetime", "Service"), ("spec.task_template.restart_policy", "Never"))).spec
    assert (asked.effective_lifetime, asked.task_template.retry_exit_codes) == ("Service", (75, 85))


def test_a_group_that_makes_a_workers_name_too_long_is_named() -> None:
    error = refusal(body(("metadata.name", "x" * 57), ("spec.worker_groups", [{"name": "server", "count": 1}])))
    assert isinstance(error, NameNotDnsSafe)
    assert fields(error) == ["spec.worker_groups[0].name"]


@pytest.mark.parametrize(("count", "fits"), [(10, True), (11, False)])
def test_a_groups_highest_rank_decides_whether_its_names_fit(count: int, fits: bool) -> None:
    """52 + 1 + 8 + 1 + the rank's digits: 63 at most."""
    groups = [{"name": "a" * 8, "count": count}]
    asked = body(("metadata.name", "x" * 52), ("spec.worker_groups", groups))
    if fits:
        parse_run(asked)
    else:
        assert isinstance(refusal(asked), NameNotDnsSafe)


def test_a_groups_template_merges_environment_and_replaces_the_rest() -> None:
    stored = body(("spec.task_template.env", {"A": "1", "B": "1"}))["spec"]
    stored["worker_groups"] = [{"name": "ps", "count": 1, "task_template": {"env": {"B": "2"}, "args": ["serve"]}}]
    spec = load_spec(stored)
    template = template_of(spec, "ps")
    assert (template.env, template.args, template.image) == ({"A": "1", "B": "2"}, ("serve",), spec.task_template.image)
    assert template_of(spec, "") is spec.task_template
