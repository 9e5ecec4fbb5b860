"""A workspace at work, seen by somebody signed in, and how its pages are read."""

import re
from typing import Any

from django.test import Client
from django.utils import timezone

from astraconsole.tenancy.permissions import Role
from astraconsole.tenancy.queries import Access
from runs.models import Run
from tests import builders
from tests.builders import GIB

HTMX = {"HTTP_HX_REQUEST": "true"}


class Place:
    """One workspace on one cluster with a machine of 8 GPUs, seen by somebody signed in."""

    def __init__(self, role: Role = Role.EDITOR) -> None:
        self.workspace = builders.workspace(builders.organisation("acme"))
        self.cluster = builders.cluster(self.workspace, quota_gpus=64, weight=2, pools=["train"])
        self.machine = builders.machine(
            self.cluster, "gpu-07", cpu=96, memory=1024 * GIB, gpus=8, labels={"pool": "train"}
        )
        self.access = builders.access(self.workspace, role)
        self.client = signed_in(self.access)
        self.base = "/o/acme/w/vision"

    def submit(self, name: str, **asked: Any) -> Run:
        return builders.submit(self.access, self.cluster, name, now=timezone.now(), **asked)

    def get(self, path: str, **options: Any) -> str:
        answer = self.client.get(self.base + path, **options)
        assert answer.status_code == 200, answer.content
        return answer.content.decode()

    def post(self, path: str, **data: Any) -> Any:
        return self.client.post(self.base + path, data)


def signed_in(access: Access) -> Client:
    client = Client()
    client.force_login(access.user)
    return client


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def notes_of(html: str, field: str) -> str:
    """What stands under a field of the form."""
    found = re.search(rf'<div [^>]*id="notes-{field}".*?</div>', html, re.DOTALL)
    assert found is not None
    return text_of(found[0])
