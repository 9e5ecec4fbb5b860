"""`astra` as a real process against a whole console: docs/cli.md to the letter, and what it cannot show."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from astraconsole.cli.problems import Exit
from tests.conftest import PROJECT
from tests.console import Console, eventually, running_console

pytestmark = pytest.mark.processes

PAGE = (PROJECT / "docs" / "cli.md").read_text()
SHOWN_URL = "https://console.example.com"
SMALL = ("--image", "busybox", "--cpus", "0.1", "--mem", "64M")


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    options = (
        "--runtime",
        "process",
        "--machine-cpus",
        "4",
        "--machine-memory",
        "4Gi",
        "--simulate-gpus",
        "2xH100-80GB",
    )
    with running_console(*options, env={"STOP_GRACE_SECONDS": "2", "RESTART_BACKOFF_SECONDS": "0.2"}) as running:
        yield running


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with `astra` on its path, as `make setup` installs it."""
    command = tmp_path / "bin" / "astra"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m astraconsole.cli.main "$@"\n')
    command.chmod(0o755)
    return tmp_path


def environment(home: Path, console: Console | None = None) -> dict[str, str]:
    """Of a person at `home`; signed in by variables where a console is given."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ASTRA_")}
    told = {} if console is None else {"ASTRA_URL": console.url, "ASTRA_TOKEN": console.ready["token"]}
    place = {} if console is None else {"ASTRA_ORG": "demo", "ASTRA_WORKSPACE": "default"}
    paths = {"PATH": f"{home}/bin:{clean['PATH']}", "PYTHONPATH": str(PROJECT), "XDG_CONFIG_HOME": f"{home}/config"}
    return {**clean, **paths, **told, **place}


def astra(home: Path, console: Console, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**environment(home, console), **variables}
    return subprocess.run(["astra", *arguments], cwd=home, env=env, capture_output=True, text=True, timeout=120)


def start(home: Path, console: Console, *arguments: str) -> subprocess.Popen[str]:
    """Ctrl-C reaches it also where the tests themselves run in the background, which has children ignore it."""
    return subprocess.Popen(
        ["astra", *arguments],
        cwd=home,
        env=environment(home, console),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def decide(console: Console, code: str, decision: str) -> None:
    """What the person does in a browser."""
    with httpx.Client(base_url=console.url) as browser:
        browser.get("/sign-in")
        person = {name: console.ready[name] for name in ("username", "password")}
        browser.post("/sign-in", data={**person, "csrfmiddlewaretoken": browser.cookies["csrftoken"]})
        page = browser.get("/device", params={"code": code})
        assert os.uname().nodename in page.text
        form = {"code": code, "decision": decision, "csrfmiddlewaretoken": browser.cookies["csrftoken"]}
        assert browser.post("/device", data=form).headers["location"] == f"/device?done={decision}"


# ---- the page ----


def files_of_the_page() -> dict[str, str]:
    return dict(re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


def examples() -> Iterator[tuple[str, str]]:
    """(command, what it prints) in the page's order."""
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


def as_pattern(output: str) -> str:
    """A line `…` alone is any lines; elsewhere `…` is anything within its line."""
    lines = [
        r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*?") + r"\n" for line in output.splitlines()
    ]
    return "".join(lines)


def run_example(home: Path, console: Console, command: str) -> str:
    command = command.replace(SHOWN_URL, console.url)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(["bash", "-c", command], cwd=home, env=environment(home), text=True, **streams)  # type: ignore[call-overload]
    killer = threading.Timer(120, process.kill)
    killer.start()
    printed = ""
    for line in process.stdout:
        printed += line
        if code := re.search(r"approve code ([A-Z]{4}-[A-Z]{4})", line):
            decide(console, code[1], "approve")
    process.wait()
    killer.cancel()
    return printed.replace(console.url, SHOWN_URL)


def test_the_examples_of_the_page_print_what_it_says(home: Path, console: Console) -> None:
    for name, content in files_of_the_page().items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(content)
    commands = list(examples())
    assert len(commands) > 20
    for command, output in commands:
        printed = run_example(home, console, command)
        assert re.fullmatch(as_pattern(output), printed), f"$ {command}\n{printed}\n--- instead of\n{output}"


# ---- beyond the page ----


def test_a_broken_form_is_answered_in_the_shape_of_every_error(console: Console) -> None:
    headers = {"Authorization": f"Bearer {console.ready['token']}", "Content-Type": "multipart/form-data; boundary=x"}
    url = f"{console.url}/api/v1/orgs/demo/workspaces/default/templates"
    answer = httpx.post(url, headers=headers, content=b"--y\r\nbroken")
    assert answer.status_code == 400
    assert set(answer.json()) >= {"code", "message"}


def test_a_login_that_is_denied_saves_nothing(home: Path, console: Console) -> None:
    process = start(home, console, "login", console.url)
    code = re.search(r"approve code (\S+)", process.stdout.readline())
    assert code is not None
    decide(console, code[1], "deny")
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (Exit.REFUSED, "astra: LOGIN_DENIED: the login was denied\n")
    assert not (home / "config" / "astra" / "config.json").exists()


def test_following_goes_over_a_restart_and_ends_with_the_workers_outcome(home: Path, console: Console) -> None:
    again = 'if [ "$ASTRA_ATTEMPT" = 1 ]; then echo first; exit 1; fi; echo second'
    console.submit("again", "sh", "-c", again, task_template={"restart_policy": "OnFailure"})
    done = astra(home, console, "astraeus", "logs", "again", "-f")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-3:] == ["second", "", "again-0: Completed — Exited with code 0"]
    first = astra(home, console, "astraeus", "logs", "again-0", "--attempt", "1", "-f")
    assert (first.returncode, first.stdout.splitlines()[0]) == (0, "first")


def test_ctrl_c_while_waiting_leaves_the_run_and_says_how_to_stop_it(home: Path, console: Console) -> None:
    command = ("sh", "-c", "echo began; exec sleep 600")
    process = start(home, console, "astraeus", "run", "--name", "left", *SMALL, "--wait", "--", *command)
    assert "submitted" in process.stdout.readline()
    assert process.stdout.readline() == "began\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == Exit.INTERRUPTED
    assert errors.strip() == "left goes on; to stop it: astra astraeus stop left"
    assert console.run("left")["status"]["state"] == "Running"
    following = start(home, console, "astraeus", "logs", "left", "-f")
    assert following.stdout.readline() == "began\n"
    stopped = astra(home, console, "astraeus", "stop", "left", "--json")
    assert json.loads(stopped.stdout)[0]["metadata"]["name"] == "left"
    output, _ = following.communicate(timeout=60)
    assert following.returncode == Exit.CANCELLED
    assert "left-0: Cancelled — " in output


def test_a_run_that_is_deleted_while_it_is_waited_for(home: Path, console: Console) -> None:
    process = start(home, console, "astraeus", "run", "--name", "gone", *SMALL, "--wait", "--", "sleep", "600")
    console.wait_for("gone", "Running")
    assert "submitted" in process.stdout.readline()
    assert astra(home, console, "astraeus", "delete", "gone").stdout == "gone deleted\n"
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (Exit.GONE, "gone was deleted meanwhile\n")


def test_waiting_with_json_prints_the_run_as_it_ended(home: Path, console: Console) -> None:
    done = astra(home, console, "astraeus", "run", *SMALL, "--wait", "--json", "--", "sh", "-c", "exit 3")
    assert done.returncode == Exit.FAILED
    run = json.loads(done.stdout)
    assert run["status"]["state"] == "Failed"
    assert re.fullmatch(r"sh-\d{5}", run["metadata"]["name"])
    assert run["spec"]["task_template"]["restart_policy"] == "Never"


def test_output_that_is_no_text_arrives_byte_by_byte(home: Path, console: Console) -> None:
    console.submit("bytes", "sh", "-c", r"printf '\377\000\303'; sleep 0.5; printf '\251\n'")
    env = environment(home, console)
    done = subprocess.run(["astra", "astraeus", "logs", "bytes", "-f"], env=env, capture_output=True, timeout=120)
    assert done.stdout.startswith(b"\xff\x00\xc3\xa9\n")


def test_every_line_of_a_program_that_prints_as_fast_as_it_can_arrives_once_and_in_order(
    home: Path, console: Console
) -> None:
    done = astra(home, console, "astraeus", "run", "--name", "fast", *SMALL, "--wait", "--", "seq", "1", "200000")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[1:-2]
    assert lines == [str(number) for number in range(1, 200_001)]


def test_a_dry_run_creates_nothing_and_the_console_refuses_it_as_it_would_the_run(home: Path, console: Console) -> None:
    tried = astra(home, console, "astraeus", "run", "--name", "tried", *SMALL, "--dry-run", "--json", "--", "true")
    told = astra(
        home, console, "astraeus", "run", *SMALL, "--mem", "1G", "--time", "90", "--dry-run", "--", "true"
    ).stdout
    assert "0.1 cores  1 GiB" in told
    assert "time limit 1h30m" in told
    assert json.loads(tried.stdout)["forecast"] == {"starts": "at_once", "text": "starts at once on local-1"}
    assert console.api.get("jobs/tried").status_code == 404
    bad = astra(home, console, "astraeus", "run", "--name", "-bad-", *SMALL, "--dry-run", "--", "true")
    assert bad.returncode == Exit.REFUSED
    assert "metadata.name" in bad.stderr


def on_a_terminal(home: Path, console: Console, *arguments: str, **variables: str) -> str:
    """What it writes where stdout and stderr are a terminal."""
    master, terminal = pty.openpty()
    env = {**environment(home, console), "TERM": "xterm", **variables}
    process = subprocess.Popen(["astra", *arguments], env=env, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    written = b""
    try:
        while part := os.read(master, 4096):
            written += part
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(master)
    process.wait(timeout=60)
    return written.decode()


def test_colours_and_progress_are_for_terminals_and_no_color_is_heard(home: Path, console: Console) -> None:
    console.submit("coloured", "true")
    console.wait_for("coloured", "Completed")
    arguments = ("astraeus", "status", "coloured")
    assert "\x1b[" in on_a_terminal(home, console, *arguments)
    assert "\x1b[" not in on_a_terminal(home, console, *arguments, NO_COLOR="1")
    assert "\x1b[" not in on_a_terminal(home, console, *arguments, TERM="dumb")
    assert "\x1b[" not in astra(home, console, *arguments).stdout
    waiting = on_a_terminal(home, console, "astraeus", "run", *SMALL, "-w", "--", "sleep", "1")
    assert "\r\x1b[K" in waiting


def test_the_shell_completes_commands_and_names_of_runs(home: Path, console: Console) -> None:
    console.submit("completed-by-tab", "true")

    def complete(words: str) -> list[str]:
        variables = {"_ASTRA_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return astra(home, console, **variables).stdout.splitlines()

    assert "plain,whoami" in complete("astra who")
    assert "plain,--tail" in complete("astra astraeus logs --ta")
    assert complete("astra astraeus status completed-") == ["plain,completed-by-tab"]
    script = astra(home, console, "completion", "bash").stdout
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def test_a_console_that_goes_away_while_a_log_is_followed_is_waited_for(home: Path, console: Console) -> None:
    """Last in this file: the console's web server is killed; `up` starts another."""
    console.submit("steady", "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo step $i; sleep 1; done")
    console.wait_for("steady", "Running")
    process = start(home, console, "astraeus", "logs", "steady", "-f")
    assert process.stdout.readline() == "step 1\n"
    os.kill(console.pid_of("daphne"), signal.SIGKILL)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert output.splitlines() == [*(f"step {i}" for i in range(2, 9)), "", "steady-0: Completed — Exited with code 0"]
    eventually(lambda: console.api.get("jobs/steady").status_code == 200)
