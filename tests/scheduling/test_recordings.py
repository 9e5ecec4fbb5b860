"""Recorded passes: replayed with the same plan, kept when a pass surprises, and bounded."""

from pathlib import Path

import msgspec
import pytest
from django.core.management import CommandError, call_command
from hypothesis import given, settings

from machines.models import Machine
from runs.models import Attempt
from runs.scheduling import apply, loop, surprises
from runs.scheduling.loop import run_once
from runs.scheduling.planner import make_plan
from runs.scheduling.recording import Recording, decode, encode
from runs.scheduling.types import Snapshot
from tests.scheduling.database import NOW, make_machine, make_namespace, make_run
from tests.scheduling.harness import cluster
from tests.scheduling.test_properties import snapshots

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.json"))


@pytest.fixture
def kept(tmp_path: Path, settings) -> Path:
    settings.SCHEDULER_RECORDINGS = str(tmp_path / "passes")
    return tmp_path / "passes"


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recorded_pass_is_planned_as_it_was(path: Path) -> None:
    recording = decode(path.read_bytes())
    assert make_plan(recording.snapshot, recording.now) == recording.plan


@given(snapshots())
@settings(max_examples=40)
def test_a_snapshot_and_its_plan_survive_being_written_down(snapshot: Snapshot) -> None:
    recording = Recording(1000.0, snapshot, "x", make_plan(snapshot, 1000.0))
    again = decode(encode(recording))
    assert again == recording
    assert make_plan(again.snapshot, 1000.0) == recording.plan


def test_a_replay_prints_the_plan_and_whether_it_is_the_one_of_then(tmp_path: Path, capsys) -> None:
    case = cluster().machine(gpus=8).run("a", gpus=2).run("b", gpus=9)
    recording = Recording(1000.0, case.snapshot(), "planning took 3.0 s", case.plan())
    path = tmp_path / "pass.json"
    path.write_bytes(encode(recording))
    call_command("replay_snapshot", str(path))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "1 machines, 0 holds, 2 waiting runs: 1 placements",
        "place   run 1 worker 1000 on m0, GPUs 0,1",
        "wait    run 2: No machine fits: no machine has 9 GPUs; the most is 8",
    ]
    assert lines[3].endswith("recorded because planning took 3.0 s")
    path.write_bytes(encode(msgspec.structs.replace(recording, plan=make_plan(Snapshot(), 0))))
    call_command("replay_snapshot", str(path))
    assert "this is not what was decided then" in capsys.readouterr().out


def test_a_file_that_is_no_recording_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    for name in ("x.json", "missing.json"):
        with pytest.raises(CommandError, match="cannot read the recording"):
            call_command("replay_snapshot", str(tmp_path / name))


@pytest.mark.django_db
def test_a_pass_that_fails_is_recorded_and_can_be_replayed(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0")
    make_run(namespace, "nobodys-business")

    def fail(snapshot: Snapshot, now: float) -> None:
        raise ZeroDivisionError("no")

    with monkeypatch.context() as patched:
        patched.setattr(loop, "make_plan", fail)
        with pytest.raises(ZeroDivisionError):
            run_once(namespace.cluster_id, NOW)
    (path,) = kept.iterdir()
    recording = decode(path.read_bytes())
    assert recording.why == "planning failed: ZeroDivisionError('no')"
    assert len(make_plan(recording.snapshot, recording.now).placements) == 1
    assert b"business" not in path.read_bytes()


@pytest.mark.django_db
def test_a_slow_pass_is_recorded_and_goes_on(kept: Path, settings) -> None:
    settings.SCHEDULER_SLOW_SECONDS = 1e-9
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0")
    make_run(namespace, "train")
    run_once(namespace.cluster_id, NOW)
    (path,) = kept.iterdir()
    assert decode(path.read_bytes()).why.startswith("planning took")
    assert Attempt.objects.count() == 1


@pytest.mark.django_db
def test_a_stale_proposal_surprises_nobody(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0")
    make_run(namespace, "train")

    def cordon_meanwhile(snapshot: Snapshot, now: float):
        Machine.objects.update(cordoned_at=NOW)
        return make_plan(snapshot, now)

    monkeypatch.setattr(loop, "make_plan", cordon_meanwhile)
    run_once(namespace.cluster_id, NOW)
    assert Attempt.objects.count() == 0
    assert not kept.exists()


@pytest.mark.django_db
def test_a_sound_proposal_that_is_dropped_is_recorded(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = make_namespace()
    make_machine(namespace.cluster, "m0")
    make_run(namespace, "train")
    monkeypatch.setattr(apply, "within_quota", lambda placements: [])
    run_once(namespace.cluster_id, NOW)
    (path,) = kept.iterdir()
    assert decode(path.read_bytes()).why == "a sound proposal was dropped"


def test_only_the_newest_recordings_are_kept(kept: Path) -> None:
    for number in range(surprises.KEPT + 5):
        surprises.keep(1, Recording(float(number), Snapshot(), "x"))
    names = sorted(path.name for path in kept.iterdir())
    assert len(names) == surprises.KEPT
    assert names[0].startswith("pass-0000000005")


def test_a_folder_that_cannot_be_written_costs_only_the_recording(kept: Path) -> None:
    kept.write_text("a file")
    surprises.keep(1, Recording(0.0, Snapshot(), "x"))
