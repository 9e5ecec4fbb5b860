"""Which lines look like errors."""

import pytest

from runs.log_errors import contains_error, looks_like_error


@pytest.mark.parametrize(
    "text",
    [
        "ERROR: could not open file",
        "[error] worker 3 lost",
        'level=error msg="upload failed"',
        '{"level":"ERROR","msg":"boom"}',
        '{"error":"boom"}',
        "FATAL ERROR: heap limit",
        "error: no such file",
        "error: null pointer dereference",
        "Error: 404 Not Found",
        "ended with error 2",
        "10 error found",
        "Traceback (most recent call last):",
        "ValueError: bad batch",
        "ValueError: 0.5 is not in range",
        "torch.OutOfMemoryError: CUDA out of memory",
        "java.lang.NullPointerException",
        "Exception in thread main",
        "CUDA error: 700",
        "misc/ibvwrap.cc:262 NCCL WARN Call failed",
        "Killed",
        "OOMKilled: the container exceeded its memory limit",
        "Memory cgroup out of memory: Killed process 4121",
        "0 errors so far, then: error",
        "KeyError: 0",
        "ERROR: 0 GPUs found",
        "[2026-01-01 10:00:00,000: ERROR/MainProcess] Task failed",
        "ssh/error: lost",
        "Error handling request",
        "error: ok is not a function",
        "error: none of the workers answered",
        "error code 0x2",
        "no luck: error",
        '"reason": "OOMKilled"',
        "Input/output error",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    ],
)
def test_an_error_is_seen(text: str) -> None:
    assert looks_like_error(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "all is well",
        "error_rate=0.0",
        "val_error: 0.03",
        "error: 0.03",
        "error=1e-5 step=3",
        "max error 1.2e-7 within tolerance",
        "error rate 3%",
        "MeanSquaredError: 0.5",
        "0 errors",
        "no errors",
        "no error",
        "0 error",
        "without error",
        "--ignore-errors",
        "--on-error=stop",
        "jobs killed, 0",
        "0 jobs killed",
        "killed: 0",
        '{"error": null, "ok": true}',
        "error=false done=true",
        "terrorism mirror Ferrorum",
        "<img src=x onerror=alert(2)>",
        "skilled",
        "writing error.log",
        "/data/error/part-0",
        "GET /error 200",
        "test error: 5%",
        "train error 12%",
        "without any error",
        "no CUDA error",
        "no unhandled exception",
        "with the exception of rank 3",
        "error: <nil>",
        "traceback=off",
        '{"error": [], "ok": 1}',
        '{"OOMKilled": false, "ExitCode": 0}',
        "ERROR: 0.03",
        "exited with error code 0",
        "ValueError.py",
        "error free",
    ],
)
def test_numbers_and_the_absence_of_errors_are_none(text: str) -> None:
    assert not looks_like_error(text)


def test_errors_only_is_a_plain_search() -> None:
    assert contains_error("0 ERRORS")
    assert not contains_error("Killed")
