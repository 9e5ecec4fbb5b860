"""The New run form: text as people type it, into the JSON body that every other door takes. Pure.

The form knows no rule of its own about runs: it reads units, quoting and lists, builds the body, and hands it to
`runs.spec.parse_run`, whose findings it shows beside the fields they come from.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from astraconsole.errors import AstraError, Detail, JobAlreadyExists, NameNotDnsSafe, PriorityNotAllowed
from runs import units
from runs.form_texts import (
    parse_cores,
    parse_credentials,
    parse_drives,
    parse_environment,
    parse_model,
    spell_credentials,
    spell_drives,
    split_arguments,
    split_list,
    whole_number,
)
from runs.spec import RunRequest, parse_run

CPU_DEFAULTS = {"cpu": "1", "memory": "1Gi"}  # of a worker
GPU_DEFAULTS = {"cpu": "8", "memory": "64Gi"}  # of each GPU

SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash")

_SHELL_SIGNS = re.compile(r"\$\w|\$\{|\$\(|`|&&|\|\||(?:^|\s)(?:\||>|<|>>|;)(?:\s|$)")


@dataclass(frozen=True)
class Field:
    """How one field is asked for. `width` is in sixths of a row; `path` is where its value goes in the body."""

    name: str
    label: str
    path: str
    width: int = 2
    kind: str = "text"  # text | number | code | area | choice
    default: str = ""
    hint: str = ""
    placeholder: str = ""
    choices: tuple[tuple[str, str], ...] = ()


TEMPLATE = "spec.task_template"
RESOURCES = f"{TEMPLATE}.requested_resources"

MAIN: tuple[Field, ...] = (
    Field("name", "Name", "metadata.name", 3, hint="Lower-case letters, digits and -"),
    Field("image", "Image", f"{TEMPLATE}.image", 6, "code", placeholder="python:3.11-slim"),
    Field("command", "Command", f"{TEMPLATE}.command", 2, "code", hint="Empty: the image's own"),
    Field("args", "Arguments", f"{TEMPLATE}.args", 4, "code", hint="Separated by spaces; quotes keep spaces together"),
    Field("gpus", "GPUs", f"{RESOURCES}.gpu_requests.count", 2, "number", "0", "For the whole run"),
    Field("cpu", "CPU cores", f"{RESOURCES}.cpu_cores", 2, "number", CPU_DEFAULTS["cpu"]),
    Field("memory", "Memory", f"{RESOURCES}.memory_bytes", 2, "text", CPU_DEFAULTS["memory"], "512Mi, 64Gi, or bytes"),
    Field("drives", "Drives", f"{TEMPLATE}.datavolume_refs", 4, "code", hint="imagenet:/data, or imagenet:/data:ro"),
    Field("model", "Model", f"{TEMPLATE}.model_refs", 2, "code", hint="At /model; or llama:/path", placeholder="none"),
)
MORE: tuple[Field, ...] = (
    Field(
        "time_limit",
        "Time limit",
        f"{TEMPLATE}.time_limit_seconds",
        hint="90m, 2h, 1h30m, 1d, or seconds",
        placeholder="none",
    ),
    Field("priority", "Priority", "spec.priority", kind="number", placeholder="0"),
    Field("pool", "Pool", "spec.node_selection.pools", kind="choice", choices=(("", "any"),)),
    Field("machines", "Machines", "spec.machines", 2, "number", "", "Exactly this many, GPUs split evenly", "any"),
    Field(
        "start",
        "Starts",
        "spec.start",
        4,
        "choice",
        hint="Gang for workers that need each other, as in distributed training",
        choices=(
            ("", "Independent: each worker as soon as it has room"),
            ("Gang", "Gang: all workers together, or none"),
        ),
    ),
    Field("array", "Array", "spec.array.count", 3, "number", "", "Independent workers, each with an index", "none"),
    Field("parallelism", "At once", "spec.array.parallelism", 3, "number", "", "Of the array", "all"),
    Field(
        "restart_policy",
        "Restart policy",
        f"{TEMPLATE}.restart_policy",
        3,
        "choice",
        choices=(("", "OnFailure: when it exits non-zero"), ("Always", "Always: whenever it ends"), ("Never", "Never")),
    ),
    Field(
        "lifetime",
        "Lifetime",
        "spec.lifetime",
        3,
        "choice",
        choices=(("", "Batch: runs to completion"), ("Service", "Service: restarted whenever it ends, until stopped")),
    ),
    Field(
        "on_failure",
        "On failure",
        "spec.on_failure",
        6,
        "choice",
        choices=(
            ("", "Default: RestartTask; gang: RestartJob"),
            ("RestartTask", "RestartTask: restart the failed worker"),
            ("RestartJob", "RestartJob: restart all workers together"),
            ("FailJob", "FailJob: the run fails at once"),
        ),
    ),
    Field(
        "env",
        "Environment",
        f"{TEMPLATE}.env",
        6,
        "area",
        hint="KEY=value, one a line or separated by commas. No secrets: every member can read them",
    ),
    Field(
        "credentials",
        "Credentials",
        f"{TEMPLATE}.secret_refs",
        6,
        "area",
        hint="Names, one a line or separated by commas: hf-token is HF_TOKEN, hf-token:token=HF one key of it, "
        "gcs-key:/var/secrets/gcs its files",
    ),
    Field(
        "registry",
        "Registry credential",
        f"{TEMPLATE}.registry_secret_ref",
        kind="code",
        hint="To pull from a private registry",
        placeholder="none",
    ),
    Field("working_dir", "Working directory", f"{TEMPLATE}.working_dir", kind="code", placeholder="the image's"),
    Field("user", "User", f"{TEMPLATE}.user", kind="code", placeholder="the image's"),
    Field(
        "pull_policy",
        "Pull policy",
        f"{TEMPLATE}.pull_policy",
        kind="choice",
        choices=(("", "IfNotPresent"), ("Always", "Always"), ("None", "None: never pull")),
    ),
    Field(
        "engine",
        "Engine",
        "spec.engine",
        4,
        "choice",
        hint="Out of each worker's cores, memory and GPUs; its address is in ASTRA_ENGINE_URL",
        choices=(("", "none"), ("model", "Serve the model beside the run")),
    ),
    Field("gpu_models", "GPU models", f"{RESOURCES}.gpu_requests.models", 6, hint="Any of these", placeholder="any"),
)
FIELDS: dict[str, Field] = {item.name: item for item in (*MAIN, *MORE)}

# Fields that name what the workspace keeps: which of its names, and the key of one in what was read.
NAMED = {
    "credentials": ("credentials", "external_secret_name"),
    "registry": ("credentials", ""),
    "drives": ("drives", "name"),
    "model": ("model", "name"),
}

# Which field a finding of the specification belongs to: the longest path that it begins with.
OWNERS: dict[str, str] = {item.path: item.name for item in FIELDS.values()} | {
    f"{RESOURCES}.per_gpu.cpu_cores": "cpu",
    f"{RESOURCES}.per_gpu.memory_bytes": "memory",
    f"{RESOURCES}.gpu_requests": "gpus",
    "spec.array": "array",
    "spec.node_selection": "pool",
}
# Which field a refusal at submit belongs to.
OWNERS_BY_CODE = {JobAlreadyExists.code: "name", NameNotDnsSafe.code: "name", PriorityNotAllowed.code: "priority"}


# How the text of a field becomes its value in the body; what is not listed stays text, without outer blanks.
READERS: dict[str, Callable[[str], Any]] = {
    "args": split_arguments,
    "env": parse_environment,
    "credentials": parse_credentials,
    "drives": parse_drives,
    "model": parse_model,
    "gpu_models": split_list,
    "pool": lambda text: [text],
    "gpus": whole_number,
    "machines": whole_number,
    "array": whole_number,
    "parallelism": whole_number,
    "priority": whole_number,
    "cpu": parse_cores,
    "memory": lambda text: units.parse_memory(text, plain="bytes"),
    "time_limit": lambda text: units.parse_duration(text, plain="seconds"),
}


@dataclass
class NewRun:
    """The form as it stands: texts, what was read, findings by field, findings that no field owns."""

    texts: dict[str, str]
    values: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)
    general: list[Detail] = field(default_factory=list)
    known: Mapping[str, Collection[str]] = field(default_factory=dict)  # the workspace's names

    @classmethod
    def empty(cls) -> "NewRun":
        return cls({item.name: item.default for item in FIELDS.values()})

    @classmethod
    def read(cls, posted: Mapping[str, str]) -> "NewRun":
        """Every field is read, whatever is wrong with another."""
        form = cls({name: posted.get(name, "") for name in FIELDS})
        for name, text in form.texts.items():
            if not text.strip():
                continue
            try:
                form.values[name] = READERS.get(name, str.strip)(text)
            except ValueError as error:
                form.errors.setdefault(name, []).append(str(error))
        if "engine" in form.values and not form.texts["model"].strip():
            form.errors["engine"] = ["needs a model to serve"]
        return form

    @property
    def has_gpus(self) -> bool:
        return bool(self.values.get("gpus", 0) > 0)

    @property
    def resource_defaults(self) -> dict[str, str]:
        return GPU_DEFAULTS if self.has_gpus else CPU_DEFAULTS

    def body(self) -> dict[str, Any]:
        """The run as the API's JSON body. Fields left empty are left out; resources fall back to their defaults."""
        template: dict[str, Any] = {}
        for name in ("image", "command", "args", "env", "working_dir", "user", "pull_policy", "restart_policy"):
            if name in self.values:
                template[name] = self.values[name]
        if "time_limit" in self.values:
            template["time_limit_seconds"] = self.values["time_limit"]
        named = {"credentials": "secret_refs", "drives": "datavolume_refs", "model": "model_refs"}
        template |= {field: self.values[name] for name, field in named.items() if name in self.values}
        if "registry" in self.values:
            template["registry_secret_ref"] = {"external_secret_name": self.values["registry"]}
        template["requested_resources"] = self._resources()
        spec: dict[str, Any] = {"task_template": template, **self._workers()}
        for name in ("start", "on_failure", "lifetime", "priority"):
            if name in self.values:
                spec[name] = self.values[name]
        if "engine" in self.values and "model" in self.values:
            spec["engine"] = {"model": self.values["model"][0]["name"]}
        return {"metadata": {"name": self.values.get("name", "")}, "spec": spec}

    def _resources(self) -> dict[str, Any]:
        read = {name: READERS[name](text) for name, text in self.resource_defaults.items()} | self.values
        asked = {"cpu_cores": read["cpu"], "memory_bytes": read["memory"]}
        gpus: dict[str, Any] = {}
        if self.values.get("gpus", 0) != 0:
            gpus["count"] = self.values["gpus"]
        if "gpu_models" in self.values:
            gpus["models"] = self.values["gpu_models"]
        form = {"per_gpu": asked} if self.has_gpus else asked
        return {"gpu_requests": gpus, **form} if gpus else form

    def _workers(self) -> dict[str, Any]:
        workers: dict[str, Any] = {}
        if "machines" in self.values:
            workers["machines"] = self.values["machines"]
        if "pool" in self.values:
            workers["node_selection"] = {"pools": self.values["pool"]}
        named = {"array": "count", "parallelism": "parallelism"}
        if array := {key: self.values[name] for name, key in named.items() if name in self.values}:
            workers["array"] = array
        return workers

    def request(self) -> RunRequest | None:
        """The parsed run, or None with the findings noted."""
        try:
            request = parse_run(self.body(), console=True)
        except AstraError as error:
            self.refuse(error)
            return None
        return None if self.errors else request

    def refuse(self, error: AstraError) -> None:
        """Note a refusal beside the fields it is about."""
        detail = error.detail or [Detail(field=OWNERS_BY_CODE.get(error.code, ""), rule=error.message)]
        for item in detail:
            name = item["field"] if item["field"] in FIELDS else owner_of(item["field"])
            if name is None:
                self.general.append(item)
            elif name not in self.errors:  # a text that could not be read has its sentence already
                self.errors[name] = [item["rule"]]

    def only_of_filled(self) -> None:
        """While somebody types: nothing about fields that they have not come to yet."""
        self.errors = {name: rules for name, rules in self.errors.items() if self.texts[name].strip()}
        self.general = []

    def echoes(self) -> dict[str, str]:
        """What was understood, by field, in the one spelling that all pages use."""
        echoes = {
            name: text for name, text in (("args", self._argv()), ("env", _listed(self.values.get("env")))) if text
        }
        if "credentials" in self.values:
            echoes["credentials"] = spell_credentials(self.values["credentials"])
        for name in ("drives", "model"):
            if name in self.values:
                echoes[name] = spell_drives(self.values[name])
        if "time_limit" in self.values:
            echoes["time_limit"] = units.format_duration(self.values["time_limit"])
        if "memory" in self.values:
            echoes["memory"] = _in_all(self.values["memory"], self._gpus(), units.format_memory)
        if self.has_gpus and "cpu" in self.values:
            total = round(self.values["cpu"] * 1000) * self._gpus()
            echoes["cpu"] = f"{units.format_cores(total)} cores in all"
        if share := self._share_of_a_machine():
            echoes["machines"] = share
        if self.values.get("start") == "Gang" and "on_failure" not in self.values:
            echoes["on_failure"] = "RestartJob: a gang restarts all its workers together"
        return echoes

    def warning(self, name: str) -> str:
        """About names that mean nothing yet: the run is taken, and its workers wait for them."""
        if name not in NAMED or name not in self.values:
            return ""
        kind, key = NAMED[name]
        asked = [self.values[name]] if name == "registry" else [one[key] for one in self.values[name]]
        missing = [one for one in dict.fromkeys(asked) if kind in self.known and one not in self.known[kind]]
        return f"The workspace has no {' or '.join(missing)} yet: its workers will wait for it" if missing else ""

    def _share_of_a_machine(self) -> str:
        """What `machines` makes of the GPUs; nothing where they are not split evenly: then the forecast says so."""
        machines = self.values.get("machines", 0)
        if machines < 1 or not self.has_gpus or self._gpus() % machines:
            return ""
        workers = "1 worker" if machines == 1 else f"{machines} workers, one on each machine"
        return f"{workers}, with {units.counted(self._gpus() // machines, 'GPU')}" + (" each" if machines > 1 else "")

    def _gpus(self) -> int:
        return int(self.values["gpus"]) if self.has_gpus else 0

    def _argv(self) -> str:
        if "args" not in self.values:
            return ""
        echo = json.dumps(self.values["args"], ensure_ascii=False)
        looks_like_shell = _SHELL_SIGNS.search(self.texts["args"]) is not None
        if looks_like_shell and self.values.get("command") not in SHELLS:
            echo += " — there is no shell: passed as it is"
        return echo

    def sections(self, pools: Iterable[str] = ()) -> dict[str, list[dict[str, Any]]]:
        """The fields as templates draw them: `main`, and `more` behind More options."""
        echoes = self.echoes()
        return {
            "main": [self._drawn(item, echoes, pools) for item in MAIN],
            "more": [self._drawn(item, echoes, pools) for item in MORE],
        }

    def _drawn(self, item: Field, echoes: dict[str, str], pools: Iterable[str]) -> dict[str, Any]:
        is_resource = item.name in CPU_DEFAULTS
        return {
            "is": item,
            "choices": (*item.choices, *((pool, pool) for pool in pools)) if item.name == "pool" else item.choices,
            "text": self.texts[item.name],
            "errors": self.errors.get(item.name, []),
            "echo": "" if item.name in self.errors else echoes.get(item.name, ""),
            "warning": "" if item.name in self.errors else self.warning(item.name),
            "per_gpu": {"cpu": CPU_DEFAULTS[item.name], "gpu": GPU_DEFAULTS[item.name]} if is_resource else None,
            "label": f"{item.label} per GPU" if is_resource and self.has_gpus else item.label,
        }

    @property
    def more_is_used(self) -> bool:
        return any(self.texts[item.name].strip() for item in MORE)


def owner_of(path: str) -> str | None:
    """The field whose path this finding's path begins with."""
    fits = [known for known in OWNERS if path == known or path.startswith((f"{known}.", f"{known}["))]
    return OWNERS[max(fits, key=len)] if fits else None


def _listed(pairs: dict[str, str] | None) -> str:
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in (pairs or {}).items())


def _in_all(each: int, gpus: int, spell: Callable[[int], str]) -> str:
    return f"{spell(each)} each, {spell(each * gpus)} in all" if gpus else spell(each)
