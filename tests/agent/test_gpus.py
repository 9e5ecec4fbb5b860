"""GPUs through the real pynvml over a library of the tests' own; and simulated ones."""

import pynvml
import pytest

from machines.agent.gpus import NvmlGpus, Reading, SimulatedGpus, find
from machines.agent.inventory import simulated_gpus
from tests.agent.fake_nvml import FakeGpu, driver


def test_a_machine_without_a_driver_has_no_gpus():
    gpus = find([])
    assert gpus.inventory() == []
    assert gpus.read({}) == {}


def test_the_inventory_is_what_the_driver_tells():
    with driver(FakeGpu(), FakeGpu("NVIDIA A100-SXM4-40GB", 40 << 30, gpm=False)):
        found = NvmlGpus().inventory()
    assert [(gpu.index, gpu.uuid, gpu.model, gpu.memory_bytes >> 30) for gpu in found] == [
        (0, "GPU-0", "NVIDIA H100 80GB HBM3", 80),
        (1, "GPU-1", "NVIDIA A100-SXM4-40GB", 40),
    ]
    assert all(gpu.healthy and not gpu.simulated for gpu in found)


def test_activity_is_what_happened_between_two_looks_and_only_where_the_gpu_tells_it():
    with driver(FakeGpu(), FakeGpu(gpm=False)) as nvml:
        gpus = NvmlGpus()
        first, second, third = (gpus.read({}) for _ in range(3))
        assert nvml.samples == 1, "of each sample but the newest"
    assert first[0] == Reading(0.97, 60 << 30, 1)
    assert second[0] == third[0] == Reading(0.97, 60 << 30, 1, sm=0.8, tensor=0.405, dram=0.62)
    assert second[1] == Reading(0.97, 60 << 30, 1)


def test_an_activity_that_the_driver_does_not_know_is_left_out():
    with driver(FakeGpu(activity={2: 80.0, 5: 250.0})):
        gpus = NvmlGpus()
        gpus.read({})
        assert gpus.read({})[0] == Reading(0.97, 60 << 30, 1, sm=0.8, tensor=1.0)


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        (FakeGpu(ecc_errors=1), "1 uncorrected ECC error since the GPU was last reset"),
        (FakeGpu(ecc_errors=3), "3 uncorrected ECC errors since the GPU was last reset"),
        (FakeGpu(ecc_errors=None), ""),
        (FakeGpu(rows_failed=True), "A memory row could not be remapped"),
        (FakeGpu(rows_pending=True), "Memory rows wait to be remapped: the GPU needs a reset"),
    ],
)
def test_faults_of_the_memory_make_a_gpu_unhealthy(gpu, reason):
    with driver(gpu):
        [found] = NvmlGpus().inventory()
    assert (found.healthy, found.health_reason) == (not reason, reason)


def test_a_gpu_that_is_lost_while_the_agent_runs_stays_in_the_inventory_as_unhealthy():
    with driver(FakeGpu(), FakeGpu()) as nvml:
        gpus = NvmlGpus()
        assert all(gpu.healthy for gpu in gpus.inventory())
        nvml.gpus[1].lost = True
        found = gpus.inventory()
        assert [gpu.healthy for gpu in found] == [True, False]
        assert found[1].uuid == "GPU-1"
        assert found[1].health_reason == "The GPU is lost: it has fallen off the bus"
        assert gpus.read({})[1] == Reading()
        nvml.gpus[1].lost = False
        assert gpus.inventory()[1].healthy


def test_a_gpu_that_is_lost_from_the_start_is_counted_and_not_used():
    with driver(FakeGpu(), FakeGpu(lost=True)):
        found = NvmlGpus().inventory()
    assert [(gpu.index, gpu.healthy) for gpu in found] == [(0, True), (1, False)]


def test_an_xid_of_the_gpus_own_stands_and_one_of_the_program_does_not_count():
    with driver(FakeGpu(), FakeGpu()) as nvml:
        gpus = NvmlGpus()
        gpus.inventory()
        nvml.xids = [(0, 31), (1, 79)]
        found = gpus.inventory()
        assert [gpu.health_reason for gpu in found] == ["", "XID 79 was reported by the driver"]
        assert not gpus.inventory()[1].healthy


def test_the_errors_are_pynvmls_own():
    with driver(FakeGpu(lost=True)), pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByIndex(0)


# ---- simulated


def test_simulated_gpus_are_busy_where_they_are_held_and_tell_activity_from_hopper_on():
    gpus = SimulatedGpus(simulated_gpus("2xH100-80GB,1xA100-40GB", "m" * 32))
    readings = gpus.read({0: 600.0, 2: 600.0})
    held, free, older = readings[0], readings[1], readings[2]
    assert held.utilization is not None
    assert held.utilization > 0.8
    assert held.processes == 1
    assert (free.utilization, free.processes) == (0.0, 0)
    assert None not in (held.sm, held.tensor, held.dram)
    assert (older.sm, older.tensor, older.dram) == (None, None, None)
    for reading in readings.values():
        ratios = (reading.utilization, reading.sm, reading.tensor, reading.dram)
        assert all(0 <= ratio <= 1 for ratio in ratios if ratio is not None)
        assert reading.memory_bytes is not None
        assert reading.memory_bytes <= 80 << 30
