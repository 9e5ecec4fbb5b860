"""A bad value in the environment stops the start with one line that names the variable."""

import os
import subprocess
import sys

import pytest

from tests.conftest import PROJECT


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LOG_FOLLOW_SECONDS", "often"),
        ("MACHINE_LEASE_SECONDS", "0"),
        ("RESTART_BUDGET", "-1"),
        ("MACHINE_CORDON_FAILURES", "1"),
        ("BEHIND_TLS_PROXY", "perhaps"),
        ("LOG_LEVEL", "LOUD"),
        ("ENGINE_ARGS", '["a", 1]'),
        ("ENGINE_ARGS", "--port {port}"),
        ("ENGINE_SHARE", "1"),
        ("ENGINE_HEALTH_PATH", "health"),
        ("WEBHOOK_REACH", "everywhere"),
        ("DATABASE_URL", "mysql://host/name"),
        ("REDIS_URL", "127.0.0.1:6379"),
    ],
)
def test_a_bad_value_is_named_in_one_line(name: str, value: str) -> None:
    done = check({name: value})
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    assert f'"{name}"' in line


def test_empty_addresses_mean_none_is_given() -> None:
    assert check({"DATABASE_URL": "", "REDIS_URL": ""}).returncode == 0


def check(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=PROJECT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
