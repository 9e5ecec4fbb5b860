"""Inventories, cgroups and the command line."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from machines.agent import inventory
from machines.agent.cgroups import Cgroups, Limits
from machines.agent.main import main
from runs import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16Gi", 16 << 30),
        ("16G", 16 << 30),
        ("80GB", 80 << 30),
        ("512Mi", 512 << 20),
        ("1.5Gi", 3 << 29),
        ("16gib", 16 << 30),
        ("1000", 1000),
    ],
)
def test_amounts_of_memory_are_read_as_the_console_reads_them(text, expected):
    assert inventory.parse_memory(text) == units.parse_memory(text, plain="bytes") == expected


@pytest.mark.parametrize("text", ["", "Gi", "-1Gi", "0", "16Xi", "1e3"])
def test_a_bad_amount_of_memory_is_an_error_to_both(text):
    with pytest.raises(ValueError, match="not an amount of memory"):
        inventory.parse_memory(text)
    with pytest.raises(ValueError, match="size"):
        units.parse_memory(text, plain="bytes")


def test_simulated_gpus_of_several_models_have_one_row_of_indexes():
    gpus = inventory.simulated_gpus("2xA100-40GB,1xH100-80GB", "m" * 32)
    assert [(gpu.index, gpu.model, gpu.memory_bytes >> 30) for gpu in gpus] == [
        (0, "A100-40GB", 40),
        (1, "A100-40GB", 40),
        (2, "H100-80GB", 80),
    ]
    assert len({gpu.uuid for gpu in gpus}) == 3
    assert all(gpu.simulated for gpu in gpus)


@pytest.mark.parametrize("text", ["H100", "8x", "8xH100", "x8-80GB", "8xH100-80"])
def test_a_bad_number_of_gpus_is_an_error(text):
    with pytest.raises(ValueError, match="not a"):
        inventory.simulated_gpus(text, "m")


def hierarchy(base: Path, version: int) -> Cgroups:
    """A tree that holds the files a kernel would show; they are made when a cgroup is."""
    files = {
        1: ["cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us", "memory.limit_in_bytes"],
        2: ["cpu.weight", "cpu.max", "memory.max", "memory.swap.max"],
    }[version]

    class Tree(Cgroups):
        def _make(self, path: Path) -> None:
            path.mkdir(exist_ok=True)
            for name in files:
                (path / name).touch()

    return Tree([base], version, 0, 0)


def value(paths: list[str], name: str) -> str:
    return Path(paths[0], name).read_text()


def test_limits_of_version_2(tmp_path):
    paths = hierarchy(tmp_path, 2).take(Limits(1500, 1 << 30))
    assert value(paths, "cpu.max") == "150000 100000"
    assert value(paths, "cpu.weight") == "150"
    assert (value(paths, "memory.max"), value(paths, "memory.swap.max")) == (str(1 << 30), "0")


def test_limits_of_version_1(tmp_path):
    paths = hierarchy(tmp_path, 1).take(Limits(1500, 1 << 30))
    assert value(paths, "cpu.cfs_quota_us") == "150000"
    assert value(paths, "cpu.shares") == "1536"
    assert value(paths, "memory.limit_in_bytes") == str(1 << 30)


def test_with_burst_cores_are_a_share_and_no_ceiling(tmp_path):
    paths = hierarchy(tmp_path, 2).take(Limits(1500, 0, cpu_burst=True))
    assert value(paths, "cpu.max") == "max 100000"
    assert value(paths, "cpu.weight") == "150"


def test_a_cgroup_is_used_again_with_the_next_ones_limits(tmp_path):
    cgroups = hierarchy(tmp_path, 2)
    first = cgroups.take(Limits(1000, 1 << 30))
    cgroups.give_back(first)
    Path(first[0], "memory.max").write_text("")
    assert cgroups.take(Limits(1000, 1 << 30)) == first
    assert value(first, "memory.max") == ""  # not written again: it has these limits
    cgroups.give_back(first)
    assert cgroups.take(Limits(1000, 0)) == first
    assert value(first, "memory.max") == "max"


def test_a_cgroup_that_somebody_cleaned_away_is_made_anew(tmp_path):
    cgroups = hierarchy(tmp_path, 2)
    first = cgroups.take(Limits(1000, 0))
    cgroups.give_back(first)
    shutil.rmtree(first[0])
    assert cgroups.take(Limits(1000, 0)) != first


def test_a_folder_that_is_not_ours_is_not_used_as_a_cgroup(tmp_path):
    cgroups = hierarchy(tmp_path, 2)
    cgroups.give_back([str(tmp_path / "elsewhere" / "x")])
    assert cgroups.take(Limits(1000, 0)) != [str(tmp_path / "elsewhere" / "x")]


def test_the_keeper_waits_in_the_next_attempts_cgroup(tmp_path):
    cgroups = hierarchy(tmp_path, 2)
    spare = cgroups.set_spare()
    assert cgroups.set_spare() == spare
    assert cgroups.take(Limits(1000, 0)) == spare
    assert cgroups.set_spare() != spare


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code != 0
    return result.output


def test_an_agent_without_a_token_says_how_to_get_one(tmp_path):
    assert "join first" in run("run", "--console", "http://x", "--state-dir", str(tmp_path / "s"))


def test_a_config_with_a_field_nobody_knows_is_one_clear_line(tmp_path):
    config = tmp_path / "agent.json"
    config.write_text('[{"console": "http://x", "name": "m", "state_dir": "/x", "colour": "red"}]')
    assert "colour" in run("local", "--config", str(config))


def test_a_join_that_cannot_reach_its_console_is_one_clear_line(tmp_path):
    words = run("join", "--console", "http://127.0.0.1:9", "--state-dir", str(tmp_path), "--token", "t")
    assert "cannot join http://127.0.0.1:9" in words


def test_a_join_without_a_token_says_where_it_can_come_from(tmp_path):
    assert "ASTRA_JOIN_TOKEN" in run("join", "--console", "http://x", "--state-dir", str(tmp_path))
