"""One fault after the other, by a seed, while runs come and go: each ends as it should, once."""

import random
from collections.abc import Callable

import pytest

from tests.faults.stage import SERVICES, Host, Stage, on, template

pytestmark = pytest.mark.processes

ROUNDS = 3
FAULTS = (*SERVICES, "redis-flush", "agent")
MACHINE = ("--runtime", "process", "--simulate-gpus", "2xH100-80GB", "--cpus", "4", "--memory", "4Gi")
LINES = 120
CHATTY = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); sleep 0.02; done; "
WHOLE_LOG = "".join(f"line {number}\n" for number in range(LINES))


def test_a_storm_of_faults_costs_no_run_its_end(place: Stage, injected: Callable[..., None]) -> None:
    chance = random.Random(7)
    host = place.host("storm", *MACHINE)
    codes: dict[str, int] = {}
    for turn in range(ROUNDS):
        for fault in chance.sample(FAULTS, len(FAULTS)):
            name = f"s{turn}-{fault}"
            codes[name] = chance.choice((0, 0, 1, 9))
            text = f"{CHATTY if turn == 1 else 'echo one;'} exit {codes[name]}"
            place.submit(name, text, task_template=template(), **on("storm"))
            inject(place, host, fault)
            injected(f"in a storm: {fault}")
    place.check()
    for name, code in codes.items():
        task = place.console.task(f"{name}-0")
        assert (task["exit_code"], task["restarts"]) == (code, 0), place.told(f"{name}-0")
        place.log_is(f"{name}-0", WHOLE_LOG if name.startswith("s1") else "one\n")
    host.kill_all()


def inject(place: Stage, host: Host, fault: str) -> None:
    if fault == "agent":
        host.kill()
        host.start()
    elif fault == "redis-flush":
        place.flush_redis()
    else:
        place.kill(fault)
