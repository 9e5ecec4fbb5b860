"""A Docker Engine of the tests' own, on a private socket with private data, and a local image: a plugin (`-p`)."""

import io
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

IMAGE = "localhost/busybox:test"
START_SECONDS = 60


@dataclass
class Engine:
    """A dockerd in a folder of its own; `url` is what DOCKER_HOST would hold."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/docker.sock"

    def start(self) -> None:
        # Containers survive a restart of the engine, as on a well kept machine. No bridge, no packet filter rules: the
        # machine's own network stays as it is.
        command = [
            "dockerd",
            "--host",
            self.url,
            "--live-restore",
            "--bridge=none",
            "--iptables=false",
            "--ip6tables=false",
        ]
        for option, name in (("data-root", "data"), ("exec-root", "exec"), ("pidfile", "docker.pid")):
            command += [f"--{option}", str(self.folder / name)]
        with open(self.folder / "dockerd.log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait_until_it_answers()

    def halt(self) -> None:
        """End the daemon alone; containers go on."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def stop(self) -> None:
        containers = self.docker("ps", "--all", "--quiet").split()
        if containers:
            self.docker("rm", "--force", *containers)
        self.halt()
        while mounts := _mounts_below(self.folder):
            subprocess.run(["umount", "--lazy", mounts[-1]], check=True)

    def docker(self, *arguments: str, stdin: bytes | None = None) -> str:
        """Run the `docker` client against this engine. Raises CalledProcessError."""
        command = ["docker", "--host", self.url, *arguments]
        return subprocess.run(command, input=stdin, stdout=subprocess.PIPE, check=True).stdout.decode()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                log = (self.folder / "dockerd.log").read_text(errors="replace")
                raise RuntimeError(f"dockerd did not start:\n{log[-3000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(f"{self.folder}/docker.sock")
            except OSError:
                return False
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b"200 OK" in connection.recv(100)


def _mounts_below(folder: Path) -> list[str]:
    """What dockerd leaves mounted: its data folder on itself, and the host's network namespace."""
    places = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
    return [place for place in places if place.startswith(f"{folder}/")]


def busybox_root() -> bytes:
    """A root file system as a tar: busybox and a link for each of its commands."""
    binary = Path(shutil.which("busybox") or "").read_bytes()
    names = subprocess.run(["busybox", "--list"], capture_output=True, check=True, text=True).stdout.split()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder in ("bin", "tmp", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        program = tarfile.TarInfo("bin/busybox")
        program.size, program.mode = len(binary), 0o755
        tar.addfile(program, io.BytesIO(binary))
        for name in set(names) - {"busybox"}:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return out.getvalue()


def import_image(engine: Engine, reference: str, *changes: str) -> None:
    """A busybox image under this name; `changes` are Dockerfile instructions such as ENTRYPOINT."""
    options = [word for change in changes for word in ("--change", change)]
    engine.docker("import", *options, "-", reference, stdin=busybox_root())


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A running engine that has IMAGE. Tests that use it carry the marker `engine`."""
    folder = Path(tempfile.mkdtemp(prefix="astra-engine-"))
    started = Engine(folder)
    try:
        started.start()
        import_image(started, IMAGE)
        yield started
    finally:
        started.stop()
        shutil.rmtree(folder, ignore_errors=True)
