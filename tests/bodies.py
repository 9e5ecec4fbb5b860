"""Bodies of requests that several tests send, or expect a form to make."""

from typing import Any

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
