"""What is wrong with a specification: findings in the API's words, and the rules that span several fields. Pure.

These rules look at the raw JSON, not at the typed result, so that they report even when another field is malformed.
"""

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError as ShapeError

from astraconsole.errors import NOT_A_FIELD, Detail
from astraconsole.rule_sentences import rule_sentence
from machines.data_names import NAME_RULE, is_data_name
from runs.names import DNS_LABEL_MAX, WORKERS_MAX, is_dns_safe, name_faults, worker_name

DEPTH_MAX = 32
DETAIL_MAX = 500  # entries; a body of a million unknown fields gets no answer larger than itself
ARGV_MAX = 1024 * 1024  # bytes of arguments and environment together: half of what Linux takes at exec
_KEY_SHOWN = 100
MODEL_PATH = "/model"  # where a model is mounted unless a run says otherwise
CODE_PATH = "/workspace"
PACKED, KEPT = "[packed]", "[kept]"  # the two forms of a run's code
_NOT_SHOWN = ("[key]", PACKED, KEPT)  # parts of a path that no field is called by

TEMPLATE = "spec.task_template"
FORMS = {"cpu_cores": "cpu_cores and memory_bytes", "memory_bytes": "cpu_cores and memory_bytes"} | {
    name: name for name in ("per_gpu", "node_fraction")
}
MOUNTED = ("secret_refs", "datavolume_refs", "model_refs")
WORKERS_COME_FROM = ("spec.machines", "spec.node_selection.count", "spec.array", "spec.worker_groups")


@dataclass
class Findings:
    """Everything that is wrong with one request."""

    unknown: list[Detail] = field(default_factory=list)
    broken: list[Detail] = field(default_factory=list)
    unsafe: list[Detail] = field(default_factory=list)  # names that are no host names

    @property
    def any(self) -> bool:
        return bool(self.unknown or self.broken or self.unsafe)

    def breaks(self, path: str, rule: str) -> None:
        self.broken.append({"field": path, "rule": rule})

    def unknown_paths(self) -> list[str]:
        return sorted(entry["field"] for entry in self.unknown)[:DETAIL_MAX]

    def detail(self) -> list[Detail]:
        return [*self.unknown, *self.broken, *self.unsafe][:DETAIL_MAX]

    def summary(self) -> str:
        """The first broken rule, and how many more there are."""
        first = f"{self.broken[0]['field']} {self.broken[0]['rule']}"
        more = len(self.broken) - 1
        return first + (f" (and {more} more broken {'rule' if more == 1 else 'rules'})" if more else "")


def cleaned(value: object, findings: Findings, path: tuple[str | int, ...] = ()) -> object:
    """The value without what no field can hold: text that the database refuses, keys that are no text, endless depth.

    Each such place is a finding, and is replaced so that all other rules can be looked at.
    """
    if isinstance(value, str):
        if _is_storable(value):
            return value
        findings.breaks(dotted(path), "must not hold NUL or broken Unicode characters")
        return "replaced"
    if len(path) >= DEPTH_MAX and isinstance(value, dict | list):
        findings.breaks(dotted(path), f"is nested deeper than {DEPTH_MAX} levels")
        return None
    if isinstance(value, list):
        return [cleaned(item, findings, (*path, index)) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return _cleaned_object(value, findings, path)
    return value


def _cleaned_object(value: dict[object, object], findings: Findings, path: tuple[str | int, ...]) -> dict[str, object]:
    result = {}
    for key, item in value.items():
        if isinstance(key, str) and _is_storable(key):
            result[key] = cleaned(item, findings, (*path, key))
        else:
            findings.breaks(dotted(path), "has a key that is no text, or holds NUL or broken Unicode characters")
    return result


def _is_storable(text: str) -> bool:
    """PostgreSQL's jsonb refuses NUL; UTF-8 has no lone surrogates."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def dotted(path: Iterable[str | int]) -> str:
    """`spec.task_template.args[0]`; the whole body is `body`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part not in _NOT_SHOWN:
            text += "." * bool(text) + (part if len(part) <= _KEY_SHOWN else part[:_KEY_SHOWN] + "…")
    return text or "body"


def shape_findings(error: ShapeError, findings: Findings) -> None:
    """Sort the shape's errors into unknown fields and broken rules, in our words."""
    for item in error.errors(include_url=False, include_input=False):
        path = dotted(item["loc"])
        if item["type"] == "extra_forbidden":
            findings.unknown.append({"field": path, "rule": NOT_A_FIELD})
        else:
            rule = rule_sentence(item["type"], item.get("ctx", {}), item["msg"])
            findings.breaks(path, rule if item["loc"][-1:] != ("[key]",) else f"is no good key: it {rule}")


# ---- rules that span fields ----


def broken_rules(body: object, console: bool, findings: Findings) -> None:
    name = given(body, "metadata.name")
    if isinstance(name, str):
        for fault in name_faults(name, console):
            findings.breaks("metadata.name", fault)
    _worker_sources(body, findings)
    for path, template in _templates(body):
        _resource_form(f"{path}.requested_resources", template.get("requested_resources"), findings)
        _template_size(path, template, _object(given(body, TEMPLATE)), findings)
        _probe_rules(path, template, findings)
        _secret_rules(path, template, _object(given(body, TEMPLATE)), findings)
        _mount_paths(path, template, _object(given(body, TEMPLATE)), given(body, "spec.code") is not None, findings)
        _restart_rules(path, template, body, findings)
        _data_names(path, template, findings)


def _templates(body: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, raw value) of the run's template and of each group's overrides; what is malformed is left to the shape."""
    template = given(body, TEMPLATE)
    if isinstance(template, dict):
        yield TEMPLATE, template
    for index, group in enumerate(_list(given(body, "spec.worker_groups"))):
        overrides = given(group, "task_template")
        if isinstance(overrides, dict):
            yield f"spec.worker_groups[{index}].task_template", overrides


def given(body: object, path: str) -> Any:
    """The raw value at a dotted path, or None where there is none."""
    for part in path.split("."):
        if not isinstance(body, dict):
            return None
        body = body.get(part)
    return body


def _resource_form(path: str, resources: object, findings: Findings) -> None:
    if not isinstance(resources, dict):
        return  # missing or malformed: the shape says so
    forms = list(dict.fromkeys(form for name, form in FORMS.items() if resources.get(name) is not None))
    if not forms:
        findings.breaks(path, "must state CPU and memory: cpu_cores and memory_bytes, or per_gpu, or node_fraction")
    elif len(forms) > 1:
        findings.breaks(path, f"must have exactly one form, and has {' and '.join(forms)}")
    for name, other in (("cpu_cores", "memory_bytes"), ("memory_bytes", "cpu_cores")):
        if resources.get(other) is not None and resources.get(name) is None:
            findings.breaks(f"{path}.{name}", f"is required with {other}")
    if resources.get("per_gpu") is not None and resources.get("gpu_requests") is None:
        findings.breaks(f"{path}.per_gpu", "needs gpu_requests.count")
    if resources.get("node_fraction") is not None and resources.get("cpu_burst") is True:
        findings.breaks(f"{path}.cpu_burst", "has no meaning with node_fraction: such a worker has no CPU limit")


def _worker_sources(body: object, findings: Findings) -> None:
    used = [path for path in WORKERS_COME_FROM if given(body, path) not in (None, [])]
    for path in used[1:]:
        findings.breaks(path, f"contradicts {used[0]}: workers come from one of them")
    if given(body, "spec.array") is not None and given(body, "spec.start") == "Gang":
        findings.breaks("spec.start", "contradicts spec.array: its workers are independent")
    at_once = given(body, "spec.array.parallelism")
    if given(body, "spec.lifetime") == "Service" and 0 < _count(at_once) < _count(given(body, "spec.array.count")):
        findings.breaks(
            "spec.array.parallelism", "contradicts spec.lifetime Service: no worker ends to let others start"
        )
    groups = [group for group in _list(given(body, "spec.worker_groups")) if isinstance(group, dict)]
    names = [group["name"] for group in groups if isinstance(group.get("name"), str)]
    for name in sorted({name for name in names if names.count(name) > 1} if len(names) <= 100 else ()):
        findings.breaks("spec.worker_groups", f"has more than one group {name}")
    if sum(_count(group.get("count")) for group in groups) > WORKERS_MAX:
        findings.breaks("spec.worker_groups", f"must have at most {WORKERS_MAX} workers together")


def _template_size(path: str, template: dict[str, Any], base: dict[str, Any], findings: Findings) -> None:
    """With what a group takes over from the run's template, `base`."""
    args = _list(template.get("args", base.get("args")))
    env = {**_object(base.get("env")), **_object(template.get("env"))}
    texts = [text for text in args if isinstance(text, str)]
    texts += [f"{name}={text}" for name, text in env.items() if isinstance(text, str)]
    if sum(len(text.encode()) + 1 for text in texts) > ARGV_MAX:
        findings.breaks(path, f"has arguments and environment of more than {ARGV_MAX} bytes together")


def _probe_rules(path: str, template: dict[str, Any], findings: Findings) -> None:
    for kind in ("startup", "readiness", "liveness"):
        probe = given(template, f"probes.{kind}")
        if not isinstance(probe, dict):
            continue
        if (probe.get("exec") is None) == (probe.get("http") is None):
            findings.breaks(f"{path}.probes.{kind}", "must have exactly one of exec and http")
        if kind != "readiness" and probe.get("success_threshold") not in (None, 1):
            findings.breaks(
                f"{path}.probes.{kind}.success_threshold", f"must be 1: one success is all of a {kind} probe"
            )


def _secret_rules(path: str, template: dict[str, Any], base: dict[str, Any], findings: Findings) -> None:
    """With what a group takes over from the run's template, `base`. A variable has one origin: which of two would win
    is nothing that anybody should have to know of a secret."""
    if "secret_refs" not in template and "env" not in template:
        return
    origins = dict.fromkeys({**_object(base.get("env")), **_object(template.get("env"))}, f"{path}.env")
    for index, secret in enumerate(_list(template.get("secret_refs", base.get("secret_refs")))):
        if not isinstance(secret, dict):
            continue
        where = f"{path}.secret_refs[{index}]"
        if not secret.get("env_vars") and secret.get("mount_path") is None:
            findings.breaks(where, "needs env_vars or mount_path")
        for key, name in _object(secret.get("env_vars")).items():
            place = f"{where}.env_vars.{key}"
            if isinstance(name, str) and origins.setdefault(name, place) != place:
                findings.breaks(place, f"sets {name}, which {origins[name]} sets as well")


def _mount_paths(path: str, template: dict[str, Any], base: dict[str, Any], has_code: bool, findings: Findings) -> None:
    """Each place in a container is one thing's."""
    seen = {CODE_PATH: "the run's code is"} if has_code else {}
    for kind in MOUNTED if any(kind in template for kind in MOUNTED) else ():
        for index, item in enumerate(_list(template.get(kind, base.get(kind)))):
            target = given(item, "mount_path") or (MODEL_PATH if kind == "model_refs" else None)
            if not isinstance(target, str):
                continue
            where, target = f"{path}.{kind}[{index}].mount_path", posixpath.normpath(f"/{target.strip('/')}")
            if target == "/":
                findings.breaks(where, "must not be the root folder")
            elif target in seen:
                findings.breaks(where, f"is where {seen[target]} mounted already")
            seen[target] = f"{kind}[{index}] is"


def _data_names(path: str, template: dict[str, Any], findings: Findings) -> None:
    """A drive or model that no workspace can have would be waited for without end."""
    for kind in ("datavolume_refs", "model_refs"):
        for index, item in enumerate(_list(template.get(kind))):
            name = given(item, "name")
            if isinstance(name, str) and not is_data_name(name):
                findings.breaks(f"{path}.{kind}[{index}].name", NAME_RULE)


def _restart_rules(path: str, template: dict[str, Any], body: object, findings: Findings) -> None:
    if not template.get("retry_exit_codes") or given(body, "spec.lifetime") == "Service":
        return
    if template.get("restart_policy", given(body, f"{TEMPLATE}.restart_policy")) == "Never":
        findings.breaks(f"{path}.retry_exit_codes", "contradicts restart_policy Never: nothing is restarted")
    if given(body, "spec.on_failure") == "FailJob":
        findings.breaks(f"{path}.retry_exit_codes", "contradicts spec.on_failure FailJob: nothing is restarted")


def unsafe_names(body: object, findings: Findings) -> None:
    """Names that follow every rule but make a worker's name that is no host name."""
    name = given(body, "metadata.name")
    if not isinstance(name, str) or name_faults(name):
        return
    for path, group, highest_rank in _stems(body):
        worker = worker_name(name, highest_rank, group)
        if not is_dns_safe(worker):
            rule = f"makes the worker name {worker}, which is not a DNS label ({DNS_LABEL_MAX} characters, no _ first)"
            findings.unsafe.append({"field": path, "rule": rule})


def _stems(body: object) -> Iterator[tuple[str, str, int]]:
    """(field that makes the name, group, highest rank) of each stem of the run."""
    groups = [group for group in _list(given(body, "spec.worker_groups")) if isinstance(group, dict)]
    for index, group in enumerate(groups):
        name = group.get("name")
        if isinstance(name, str) and not name_faults(name):
            yield f"spec.worker_groups[{index}].name", name, max(_count(group.get("count")), 1) - 1
    if not groups:
        counts = (given(body, path) for path in ("spec.machines", "spec.node_selection.count", "spec.array.count"))
        yield "metadata.name", "", max(1, *(_count(count) for count in counts)) - 1


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int:
    return min(value, WORKERS_MAX + 1) if isinstance(value, int) and value > 0 else 0
