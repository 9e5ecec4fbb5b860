"""Bodies of requests that several tests send, change, or expect a form to make."""

import copy
from typing import Any

import pytest

from astraconsole.errors import AstraError
from runs.spec import parse_run

RESNET50: dict[str, Any] = {
    "metadata": {"name": "resnet50"},
    "spec": {
        "task_template": {
            "image": "nvcr.io/nvidia/pytorch:24.08-py3",
            "command": "python",
            "args": ["/data/code/train.py", "--epochs", "90"],
            "time_limit_seconds": 43200,
            "requested_resources": {
                "gpu_requests": {"count": 1},
                "per_gpu": {"cpu_cores": 8, "memory_bytes": 68719476736},
            },
        }
    },
}
GIB = 1024**3
CPU = {"cpu_cores": 0.5, "memory_bytes": GIB}


def body(*changes: tuple[str, Any], resources: dict[str, Any] | None = None) -> dict[str, Any]:
    """RESNET50 with values set at dotted paths."""
    result = copy.deepcopy(RESNET50)
    if resources is not None:
        result["spec"]["task_template"]["requested_resources"] = resources
    for path, value in changes:
        *parents, last = path.split(".")
        place: Any = result
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return result


def refusal(request: object, **options: bool) -> AstraError:
    with pytest.raises(AstraError) as caught:
        parse_run(request, **options)
    return caught.value


def fields(error: AstraError) -> list[str]:
    return [entry["field"] for entry in error.detail]
