"""What the sampler makes of looks: values by series, CPU between looks, batches, health; and where usage is read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from machines.agent import clock
from machines.agent.gpus import Reading
from machines.agent.sampler import LOOKS_KEPT, Sampler
from machines.agent.supervisor import Attempt, Supervisor
from machines.agent.usage import Usage, cgroup_usage, engine_usage, processes_usage
from machines.metrics.names import METRICS, key_of, series_of
from machines.protocol import Gpu, Phase, Samples, Welcome
from tests.agent.agents import order

GPUS = [Gpu(0, "GPU-0", "H100", 80 << 30), Gpu(1, "GPU-1", "H100", 80 << 30)]


class Desk:
    """A runtime, GPUs and a console for one sampler, with a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, connected: bool = True) -> None:
        self.now = 1000.0
        monkeypatch.setattr(clock, "now", lambda: self.now)
        self.usage_now: dict[str, Usage] = {}
        self.gpus = list(GPUS)
        self.readings = {0: Reading(0.5, 7, 1, 0.4, 0.3, 0.2), 1: Reading(0.0, 0, 0)}
        self.sent: list[Samples] = []
        self.changes: list[list[Gpu]] = []
        self.supervisor = Supervisor("c" * 32)
        self.connect(connected)
        self.sampler = Sampler(self, self, self.supervisor, self.sent.append, self.changes.append, list(GPUS))  # type: ignore[arg-type]

    def connect(self, connected: bool) -> None:
        if connected:
            self.supervisor.on_welcome(Welcome("c" * 32, "machine", 5, 5, 1))
        else:
            self.supervisor.on_disconnected()

    def run(self, **fields: Any) -> str:
        one = order("true", **fields)
        self.sampler.hold(one)
        attempt = Attempt(one.attempt, phases=[(Phase.RUNNING, self.now)])
        self.supervisor.restore([attempt])
        return one.attempt

    async def usage(self, attempts: Sequence[str]) -> Mapping[str, Usage]:
        return {uid: self.usage_now[uid] for uid in attempts if uid in self.usage_now}

    def inventory(self) -> list[Gpu]:
        return list(self.gpus)

    def read(self, busy: Mapping[int, float]) -> dict[int, Reading]:
        return self.readings

    async def look(self, after: float = 10) -> None:
        self.now += after
        await self.sampler.look()

    def told(self, frame: Samples) -> list[dict[str, Any]]:
        """The rows of the first attempt, by name."""
        item = frame.items[0]
        names = [named(key) for key in item.keys]
        return [dict(zip(names, row.values, strict=True)) | {"ago": row.seconds_ago} for row in item.rows]


def named(key: int) -> str:
    found = series_of(key)
    assert found is not None
    return found[0].name if found[1] is None else f"{found[0].name}:{found[1]}"


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


async def test_cpu_is_what_was_used_between_two_looks(desk):
    uid = desk.run()
    desk.usage_now[uid] = Usage(100.0, 5 << 20, 0)
    await desk.look()
    desk.usage_now[uid] = Usage(125.0, 6 << 20, 1)
    await desk.look()
    desk.sampler.tell()
    first, second = desk.told(desk.sent[0])
    assert first["task_cpu_usage_cores"] is None
    assert second["task_cpu_usage_cores"] == 2.5
    assert (second["task_memory_used_bytes"], second["task_oom_kills_total"]) == (6 << 20, 1)
    assert (first["ago"], second["ago"]) == (10, 0)


async def test_what_is_not_known_is_left_out_and_never_zero(desk):
    desk.usage_now[desk.run()] = Usage(memory_bytes=5)
    await desk.look()
    desk.sampler.tell()
    assert desk.told(desk.sent[0]) == [{"task_memory_used_bytes": 5.0, "ago": 0.0}]


async def test_an_attempt_has_the_series_of_the_gpus_that_it_holds_and_its_limit(desk):
    desk.usage_now[desk.run(gpu_indexes=[0], memory_bytes=1 << 30)] = Usage()
    await desk.look()
    desk.sampler.tell()
    assert desk.told(desk.sent[0]) == [
        {
            "task_memory_limit_bytes": 1 << 30,
            "task_gpu_utilization_ratio:0": 0.5,
            "task_gpu_memory_used_bytes:0": 7,
            "task_gpu_sm_active_ratio:0": 0.4,
            "task_gpu_tensor_active_ratio:0": 0.3,
            "task_gpu_dram_active_ratio:0": 0.2,
            "ago": 0.0,
        }
    ]
    assert [(gpu.index, gpu.utilization, gpu.processes) for gpu in desk.sent[0].gpus] == [(0, 0.5, 1), (1, 0.0, 0)]


async def test_while_the_console_is_away_the_newest_looks_are_kept_and_sent_on_its_return(desk):
    desk.usage_now[desk.run()] = Usage(memory_bytes=5)
    desk.connect(False)
    for _ in range(LOOKS_KEPT + 5):
        await desk.look()
        desk.sampler.tell()
    assert desk.sent == []
    desk.connect(True)
    desk.sampler.tell()
    [frame] = desk.sent
    assert [row["ago"] for row in desk.told(frame)] == [10.0 * n for n in reversed(range(LOOKS_KEPT))]
    desk.sampler.tell()
    assert len(desk.sent) == 1


async def test_many_attempts_travel_in_several_frames_and_the_gpus_in_the_first(desk):
    for _ in range(450):
        desk.usage_now[desk.run()] = Usage(memory_bytes=5)
    await desk.look()
    desk.sampler.tell()
    assert [len(frame.items) for frame in desk.sent] == [200, 200, 50]
    assert [bool(frame.gpus) for frame in desk.sent] == [True, False, False]


async def test_a_change_of_a_gpus_health_is_told_once(desk):
    await desk.look()
    desk.gpus[1] = Gpu(1, "GPU-1", "H100", 80 << 30, False, "XID 79 was reported by the driver")
    await desk.look(after=5)
    assert desk.changes == [], "looked at every half minute"
    await desk.look(after=30)
    await desk.look(after=30)
    assert desk.changes == [desk.gpus]


def test_every_metric_has_a_number_of_its_own_that_stands_for_nothing_else():
    keys = {key_of(metric.name, 3 if metric.per_gpu else None): metric for metric in METRICS}
    assert len(keys) == len(METRICS)
    for key, metric in keys.items():
        assert series_of(key) == (metric, 3 if metric.per_gpu else None)
    assert series_of(200) is None
    assert series_of(key_of("task_cpu_usage_cores") | 1 << 8) is None, "a GPU of a metric that has none"


# ---- where usage is read


def test_a_cgroup_of_version_2_tells_cpu_memory_and_kills(tmp_path: Path):
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (tmp_path / "memory.current").write_text("1048576\n")
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert cgroup_usage([str(tmp_path)], 1) == Usage(2.5, 1 << 20, 1)


def test_a_cgroup_of_version_1_tells_them_in_its_two_hierarchies(tmp_path: Path):
    memory, cpu = tmp_path / "memory", tmp_path / "cpu"
    memory.mkdir()
    cpu.mkdir()
    (cpu / "cpuacct.usage").write_text("3500000000\n")
    (memory / "memory.usage_in_bytes").write_text("4096\n")
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert cgroup_usage([str(memory), str(cpu)]) == Usage(3.5, 4096, 4)


def test_processes_that_are_gone_are_not_known_and_not_idle():
    assert processes_usage([2**22 + 1]) == Usage()


def test_an_engine_tells_the_traffic_of_a_network_of_the_containers_own_only():
    stats = {
        "cpu_stats": {"cpu_usage": {"total_usage": 1_500_000_000}},
        "memory_stats": {"usage": 4096, "limit": 1 << 40},
        "networks": {"eth0": {"rx_bytes": 5, "tx_bytes": 7}, "eth1": {"rx_bytes": 1, "tx_bytes": 1}},
    }
    assert engine_usage(stats, 2) == Usage(1.5, 4096, 2, 6, 8)
    assert engine_usage({**stats, "networks": {}}, None) == Usage(1.5, 4096, None, None, None)
    assert engine_usage({"cpu_stats": None, "memory_stats": {}}, None) == Usage()
