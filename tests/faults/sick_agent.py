"""An agent whose driver is the tests' own: GPU 1 is lost while the file that the first argument names is there."""

import sys
import threading
import time
from pathlib import Path

from machines.agent import sampler
from machines.agent.main import main
from tests.agent.fake_nvml import FakeGpu, driver

LOOK_SECONDS = 0.1


def follow(sign: Path, gpu: FakeGpu) -> None:
    while True:
        gpu.lost = sign.exists()
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    sign = Path(sys.argv.pop(1))
    sampler.HEALTH_SECONDS = 0.5
    sick = FakeGpu()
    with driver(FakeGpu(), sick):
        threading.Thread(target=follow, args=(sign, sick), daemon=True).start()
        main()
