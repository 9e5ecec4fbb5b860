"""How long `astra` takes, as a whole process: medians of wall and CPU time, beside what Python alone takes.

    python -m bench.cli [ROUNDS]

The commands that ask a console ask one that answers at once, on loopback.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

ROUNDS = 21
ROOT = Path(__file__).resolve().parent.parent
RUN = {
    "metadata": {"name": "resnet50", "cluster": "gpu-east"},
    "status": {"state": "Running", "reason": "1 of 1 workers running"},
    "task_names": ["resnet50-0"],
}
ANSWERS = {"tasks": {"items": [], "next": None}, "jobs": {"items": [RUN] * 50, "next": None}, "resnet50": RUN}
COMMANDS = {
    "astra --help": ["--help"],
    "astra astraeus --help": ["astraeus", "--help"],
    "astra astraeus run --help": ["astraeus", "run", "--help"],
    "astra astraeus runs": ["astraeus", "runs"],
    "astra astraeus status resnet50": ["astraeus", "status", "resnet50"],
    "astra astraeus run … (submits)": ["astraeus", "run", "--image", "x", "--", "true"],
}


class AtOnce(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = json.dumps(ANSWERS[self.path.partition("?")[0].rpartition("/")[2]]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.path = "/resnet50"
        self.do_GET()

    def log_message(self, *arguments: object) -> None:
        pass


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    server = ThreadingHTTPServer(("127.0.0.1", 0), AtOnce)
    Thread(target=server.serve_forever, daemon=True).start()
    place = {"ASTRA_ORG": "acme", "ASTRA_WORKSPACE": "vision", "ASTRA_CLUSTER": "gpu-east"}
    url = {"ASTRA_URL": f"http://127.0.0.1:{server.server_port}", "ASTRA_TOKEN": "of-bench"}
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, **place, **url, "XDG_CONFIG_HOME": home, "PYTHONPATH": str(ROOT)}
        print(f"{'':34}    wall     CPU")
        show("python -c pass", [sys.executable, "-c", "pass"], env, rounds)
        for name, arguments in COMMANDS.items():
            show(name, [*entry(), *arguments], env, rounds)
    print(f"medians of {rounds} whole processes")


def entry() -> list[str]:
    """`astra` as it is installed beside this Python, else its module."""
    installed = Path(sys.executable).with_name("astra")
    return [str(installed)] if installed.exists() else [sys.executable, "-m", "astraconsole.cli.main"]


def show(name: str, command: list[str], env: dict[str, str], rounds: int) -> None:
    taken = [measure(command, env) for _ in range(rounds)]
    wall, processor = (statistics.median(column) * 1000 for column in zip(*taken, strict=True))
    print(f"{name:34} {wall:4.0f} ms {processor:4.0f} ms")


def measure(command: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Seconds from start to end, and of both kinds of CPU time, which a busy machine changes less."""
    began = time.perf_counter()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
