"""The New run form: quoting, units and lists into the API's body, and each finding beside its field."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraconsole.errors import JobAlreadyExists, PriorityNotAllowed, ValidationError
from runs.form_texts import parse_credentials, spell_credentials
from runs.forms import FIELDS, OWNERS, NewRun, owner_of
from runs.spec import parse_run
from tests.bodies import RESNET50

GOOD = {"name": "resnet50", "image": "busybox", "gpus": "0", "cpu": "1", "memory": "1Gi"}


def read(**texts: str) -> NewRun:
    return NewRun.read({**GOOD, **texts})


def checked(**texts: str) -> NewRun:
    form = read(**texts)
    form.request()
    return form


# ---- arguments: as a shell splits, expanding nothing ----


@pytest.mark.parametrize("text", ["'open", '"open', "lone\\"])
def test_arguments_that_do_not_close_are_an_error(text: str) -> None:
    assert checked(args=text).errors["args"]


# ---- environment ----


@pytest.mark.parametrize("text", ["A", "=1", "1A=2", "A=1,\nB", "A='open", "A='x'y", "A=1,A=2", "A B=1"])
def test_environment_that_cannot_be_read_is_an_error(text: str) -> None:
    assert checked(env=text).errors["env"]


# ---- the body ----


def test_the_form_of_a_gpu_run_is_the_body_that_the_api_takes() -> None:
    form = read(
        image="nvcr.io/nvidia/pytorch:24.08-py3",
        command="python",
        args="/data/code/train.py --epochs 90",
        gpus="1",
        cpu="8",
        memory="64Gi",
        time_limit="12h",
    )
    assert form.body() == RESNET50


def test_every_further_option_reaches_the_body() -> None:
    form = read(
        gpus="8",
        gpu_models="NVIDIA H100 80GB HBM3, A100",
        priority="-3",
        pool="train",
        machines="2",
        restart_policy="Never",
        on_failure="FailJob",
        lifetime="Service",
        env="A=1",
        working_dir=" /srv ",
        user="1000:1000",
        pull_policy="Always",
    )
    spec = form.body()["spec"]
    template = spec["task_template"]
    assert template["requested_resources"]["gpu_requests"] == {"count": 8, "models": ["NVIDIA H100 80GB HBM3", "A100"]}
    assert (spec["priority"], spec["machines"], spec["on_failure"]) == (-3, 2, "FailJob")
    assert spec["lifetime"] == "Service"
    assert spec["node_selection"] == {"pools": ["train"]}
    assert (template["restart_policy"], template["pull_policy"], template["env"]) == ("Never", "Always", {"A": "1"})
    assert (template["working_dir"], template["user"]) == ("/srv", "1000:1000")
    assert form.request() is not None


def test_an_array_with_its_parallelism_reaches_the_body() -> None:
    assert read(array="64", parallelism="8").body()["spec"]["array"] == {"count": 64, "parallelism": 8}


@pytest.mark.parametrize(
    ("gpus", "resources"),
    [
        ("", {"cpu_cores": 1, "memory_bytes": 1024**3}),
        ("0", {"cpu_cores": 1, "memory_bytes": 1024**3}),
        ("2", {"gpu_requests": {"count": 2}, "per_gpu": {"cpu_cores": 8, "memory_bytes": 64 * 1024**3}}),
    ],
)
def test_resources_left_empty_fall_back_to_the_defaults_that_are_shown(gpus: str, resources: dict[str, object]) -> None:
    form = read(gpus=gpus, cpu="", memory="")
    assert form.body()["spec"]["task_template"]["requested_resources"] == resources


def test_the_body_means_the_same_to_the_api() -> None:
    form = read(command="bash", args="-c 'echo $RANK'", env="A=1", time_limit="90m", cpu="0.5", memory="512Mi")
    parsed = form.request()
    assert parsed is not None
    assert parsed == parse_run(json.loads(json.dumps(form.body())))


# ---- findings beside their fields ----


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("name", ""),
        ("name", "Resnet"),
        ("name", "-x"),
        ("name", "a b"),
        ("name", "x" * 58),
        ("name", "_x"),
        ("image", ""),
        ("image", "not an image"),
        ("image", "-x"),
        ("args", "'open"),
        ("args", "nul\0"),
        ("gpus", "-1"),
        ("gpus", "1.5"),
        ("gpus", "eight"),
        ("gpus", "9" * 30),
        ("gpus", "٣"),
        ("cpu", "0"),
        ("cpu", "-1"),
        ("cpu", "many"),
        ("cpu", "10001"),
        ("memory", "0"),
        ("memory", "64Q"),
        ("memory", "1000"),
        ("memory", "9" * 40),
        ("time_limit", "never"),
        ("time_limit", "59"),
        ("time_limit", "02:00:00"),
        ("time_limit", "367d"),
        ("priority", "high"),
        ("priority", "9999999"),
        ("machines", "0"),
        ("machines", "x"),
        ("array", "0"),
        ("array", "10001"),
        ("parallelism", "0"),
        ("restart_policy", "Sometimes"),
        ("start", "Together"),
        ("on_failure", "RestartAll"),
        ("on_failure", "Panic"),
        ("env", "1=2"),
        ("working_dir", "relative"),
        ("working_dir", "/a/../b"),
        ("user", "a b"),
        ("pull_policy", "Maybe"),
    ],
)
def test_a_bad_value_is_told_beside_its_field(field: str, text: str) -> None:
    form = checked(**{"array": "2", field: text} if field == "parallelism" else {field: text})
    assert field in form.errors, (form.errors, form.general)
    assert form.request() is None
    assert all(rule for rules in form.errors.values() for rule in rules)


def test_all_bad_values_are_told_at_once() -> None:
    form = checked(name="A B", image="", cpu="x", time_limit="never", env="?", machines="0")
    assert set(form.errors) == {"name", "image", "cpu", "time_limit", "env", "machines"}


def test_machines_and_array_contradict_each_other_beside_one_of_them() -> None:
    assert checked(machines="2", array="3").errors.keys() <= {"machines", "array"} != set()


def test_gpu_models_without_gpus_ask_for_gpus() -> None:
    assert "gpus" in checked(gpu_models="A100").errors


def test_what_no_field_owns_is_still_told() -> None:
    form = read()
    form.refuse(PriorityNotAllowed("no", [{"field": "spec.code", "rule": "does not work yet"}]))
    assert form.general == [{"field": "spec.code", "rule": "does not work yet"}]


@pytest.mark.parametrize(("error", "field"), [(JobAlreadyExists, "name"), (PriorityNotAllowed, "priority")])
def test_a_refusal_at_submit_is_told_beside_its_field(error: type[JobAlreadyExists], field: str) -> None:
    form = read()
    form.refuse(error("refused"))
    assert form.errors == {field: ["refused"]}


def test_while_somebody_types_nothing_is_said_about_fields_still_empty() -> None:
    form = checked(name="", image="", cpu="x")
    form.only_of_filled()
    assert set(form.errors) == {"cpu"}


@given(st.fixed_dictionaries({}, optional={name: st.text(max_size=40) for name in FIELDS}))
def test_no_text_whatsoever_breaks_the_form(texts: dict[str, str]) -> None:
    form = NewRun.read(texts)
    parsed = form.request()
    assert (parsed is None) == bool(form.errors or form.general)
    form.sections()


def test_every_path_has_an_owner_and_parts_of_it_too() -> None:
    for path, field in OWNERS.items():
        assert owner_of(path) == field
        assert owner_of(f"{path}[0]") == owner_of(f"{path}.x") == field
    assert owner_of("spec.task_template.environment") is None


# ---- echoes ----


def test_what_was_understood_is_echoed_in_one_spelling() -> None:
    form = checked(gpus="9", cpu="8", memory="64G", time_limit="90m", args="a 'b c'", env="A=1,2", command="python")
    assert form.echoes() == {
        "args": '["a", "b c"]',
        "env": 'A="1,2"',
        "time_limit": "1h30m",
        "memory": "64 GiB each, 576 GiB in all",
        "cpu": "72 cores in all",
    }


@pytest.mark.parametrize(
    ("texts", "start", "on_failure", "echo"),
    [
        ({}, "Independent", "RestartTask", None),
        ({"start": "Gang"}, "Gang", "RestartJob", "RestartJob: a gang restarts all its workers together"),
        ({"start": "Gang", "on_failure": "RestartTask"}, "Gang", "RestartTask", None),
        ({"on_failure": "RestartJob"}, "Independent", "RestartJob", None),
        ({"on_failure": "RestartTask"}, "Independent", "RestartTask", None),
    ],
)
def test_a_gang_restarts_together_unless_the_form_says_otherwise_and_that_is_echoed(
    texts: dict[str, str], start: str, on_failure: str, echo: str | None
) -> None:
    form = checked(machines="2", **texts)
    parsed = form.request()
    assert parsed is not None
    assert (parsed.spec.effective_start, parsed.spec.effective_on_failure) == (start, on_failure)
    assert form.echoes().get("on_failure") == echo


@pytest.mark.parametrize(
    ("gpus", "machines", "echo"),
    [
        ("16", "2", "2 workers, one on each machine, with 8 GPUs each"),
        ("1", "1", "1 worker, with 1 GPU"),
        ("9", "2", None),  # does not split: the forecast beside the form says so
        ("0", "2", None),
        ("8", "0", None),
    ],
)
def test_how_machines_split_the_gpus_is_echoed(gpus: str, machines: str, echo: str | None) -> None:
    assert checked(gpus=gpus, machines=machines).echoes().get("machines") == echo


@pytest.mark.parametrize(
    ("command", "args", "warns"),
    [
        ("python", "--rank $RANK", True),
        ("python", "a && b", True),
        ("python", "x | y", True),
        ("bash", "-c 'echo $RANK'", False),
        ("python", "--pattern a|b", False),
    ],
)
def test_signs_of_a_shell_are_pointed_out_where_there_is_none(command: str, args: str, warns: bool) -> None:
    assert ("no shell" in checked(command=command, args=args).echoes()["args"]) == warns


# ---- credentials ----


@pytest.mark.parametrize(
    ("text", "references", "spelled"),
    [
        (
            "hf-token",
            [{"external_secret_name": "hf-token", "env_vars": {"value": "HF_TOKEN"}}],
            "HF_TOKEN from hf-token",
        ),
        (
            "hf.token:token=HF, gcs-key:/var/secrets/gcs\n hf.token:user=HF_USER",
            [
                {"external_secret_name": "hf.token", "env_vars": {"token": "HF", "user": "HF_USER"}},
                {"external_secret_name": "gcs-key", "mount_path": "/var/secrets/gcs"},
            ],
            "HF from key token of hf.token, HF_USER from key user of hf.token, files of gcs-key in /var/secrets/gcs",
        ),
        (
            "a, a:/x",
            [{"external_secret_name": "a", "env_vars": {"value": "A"}, "mount_path": "/x"}],
            "A from a, files of a in /x",
        ),
    ],
)
def test_credentials_are_read_from_names(text: str, references: list[dict[str, object]], spelled: str) -> None:
    assert parse_credentials(text) == references
    assert spell_credentials(references) == spelled
    assert not NewRun.read({"name": "a", "image": "busybox", "credentials": text}).errors


def test_credentials_and_the_registrys_stand_in_the_body() -> None:
    form = NewRun.read({"name": "a", "image": "r.example.com/a", "credentials": "hf", "registry": " registry-login "})
    template = form.body()["spec"]["task_template"]
    assert template["secret_refs"] == [{"external_secret_name": "hf", "env_vars": {"value": "HF"}}]
    assert template["registry_secret_ref"] == {"external_secret_name": "registry-login"}
    assert form.request() is not None
    clash = NewRun.read({"name": "a", "image": "busybox", "credentials": "hf", "env": "HF=1"})
    assert clash.request() is None
    assert clash.errors == {"credentials": ["sets HF, which spec.task_template.env sets as well"]}


@pytest.mark.parametrize(
    ("text", "references", "spelled"),
    [
        ("imagenet:/data", [{"name": "imagenet", "mount_path": "/data"}], "imagenet at /data"),
        (
            " a:/a b : ro\nb:/b:rw,",
            [{"name": "a", "mount_path": "/a b", "read_only": True}, {"name": "b", "mount_path": "/b"}],
            "a at /a b, read only; b at /b",
        ),
    ],
)
def test_drives_are_read_from_names_and_paths(text: str, references: list[dict[str, object]], spelled: str) -> None:
    form = NewRun.read({"name": "a", "image": "busybox", "drives": text})
    assert form.body()["spec"]["task_template"]["datavolume_refs"] == references
    assert form.echoes()["drives"] == spelled
    assert form.request() is not None


@pytest.mark.parametrize("text", ["imagenet", "imagenet:data", ":/data", "a:/b:wo", "a:"])
def test_what_mounts_no_drive_is_told(text: str) -> None:
    form = NewRun.read({"name": "a", "image": "busybox", "drives": text})
    assert form.request() is None
    assert "is not NAME:/path or NAME:/path:ro" in form.errors["drives"][0]


@pytest.mark.parametrize(("text", "path"), [("llama", "/model"), ("llama : /m", "/m")])
def test_a_model_is_read_from_its_name(text: str, path: str) -> None:
    form = NewRun.read({"name": "a", "image": "busybox", "model": text})
    assert form.body()["spec"]["task_template"]["model_refs"] == [{"name": "llama", "mount_path": path}]
    assert NewRun.read({"name": "a", "image": "busybox", "model": "a, b"}).errors["model"] == [
        "'a, b' is not NAME or NAME:/path"
    ]


def test_an_engine_serves_the_model_that_is_asked_for() -> None:
    given = {"name": "a", "image": "busybox", "engine": "model"}
    assert NewRun.read({**given, "model": "llama:/m"}).body()["spec"]["engine"] == {"model": "llama"}
    assert NewRun.read(given).errors == {"engine": ["needs a model to serve"]}
    assert NewRun.read({**given, "model": ":"}).errors.keys() == {"model"}
    form = NewRun.read({**given, "model": "llama"})
    form.refuse(ValidationError("no", [{"field": "spec.engine", "rule": "cannot be served"}]))
    assert form.errors == {"engine": ["cannot be served"]}


def test_a_name_that_means_nothing_yet_is_taken_with_a_warning() -> None:
    texts = {"drives": "a:/a, b:/b", "model": "m", "credentials": "c", "registry": "r"}
    form = NewRun.read({"name": "a", "image": "busybox", **texts})
    assert form.warning("drives") == ""  # nothing is known of what the workspace has
    form.known = {"drives": {"a"}, "model": {"m"}, "credentials": set()}
    assert form.warning("drives") == "The workspace has no b yet: its workers will wait for it"
    assert form.warning("credentials") == "The workspace has no c yet: its workers will wait for it"
    assert form.warning("registry") == "The workspace has no r yet: its workers will wait for it"
    assert [form.warning(name) for name in ("model", "image")] == ["", ""]
    assert form.request() is not None


@pytest.mark.parametrize(("field", "text"), [("credentials", "b c"), ("drives", "b c:/d"), ("model", "/x")])
def test_a_name_that_nothing_can_have_is_an_error_and_nothing_else(field: str, text: str) -> None:
    form = NewRun.read({"name": "a", "image": "busybox", field: text})
    form.known = {"credentials": set(), "drives": set(), "model": set()}
    assert form.request() is None
    (drawn,) = [one for part in form.sections().values() for one in part if one["is"].name == field]
    assert drawn["errors"] != []
    assert (drawn["echo"], drawn["warning"]) == ("", "")
