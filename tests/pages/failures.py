"""Failed runs, and what their pages say of them."""

import re
from typing import Any

from django.utils import timezone

from runs.models import Run
from tests import builders
from tests.pages.place import Place


def panel_of(html: str, label: str = "Failure") -> str:
    return html.split(f'aria-label="{label}"')[1].split("</section>")[0]


def links_of(html: str) -> dict[str, str]:
    """Text → address."""
    found = re.findall(r'<a [^>]*href="([^"]+)"[^>]*>([^<]+)</a>', html)
    return {text: address.replace("&amp;", "&") for address, text in found}


def failed(place: Place, name: str, ends: dict[str, Any], **asked: Any) -> Run:
    run = place.submit(name, **{"on_failure": "FailJob", **asked})
    attempt = builders.run_on(run.workers.get(), place.machine, timezone.now())
    builders.report_end(attempt, at=timezone.now(), **{"exit_code": None, "log_tail": "its last line\n", **ends})
    return run
