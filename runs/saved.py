"""What a workspace saves, templates and schedules: their fields' rules, one reading for every door. Pure."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from astraconsole.errors import NOT_A_FIELD, Detail, UnknownField, ValidationError
from runs.cron import faults_of_expression, faults_of_zone
from runs.names import RUN_NAME_MAX, name_faults

SAVED_NAME_MAX = 100
DESCRIPTION_MAX = 500
SPEC_MAX = 256 * 1024  # bytes of JSON
NUMBER_ROOM = len("-1000000")  # of a schedule's name, for the numbers of its runs


class Overlap(StrEnum):
    """What happens when a schedule is due while a run of it has not ended."""

    SKIP = "Skip"
    ALLOW = "Allow"
    REPLACE = "Replace"


class Outcome(StrEnum):
    STARTED = "Started"
    SKIPPED = "Skipped"
    FAILED = "Failed"


@dataclass(frozen=True)
class TemplateFields:
    name: str
    description: str
    spec: str  # JSON


@dataclass(frozen=True)
class ScheduleFields:
    name: str
    cluster: str
    cron: str
    zone: str
    overlap: Overlap
    spec: str  # JSON
    enabled: bool


def read_template(body: object) -> TemplateFields:
    """Of `{"name", "description"?, "spec"}`. Raises UnknownField, ValidationError with every broken rule."""
    fields = _Fields(body, {"name", "description", "spec"})
    name = fields.text("name", SAVED_NAME_MAX, required=True)
    description = fields.text("description", DESCRIPTION_MAX)
    spec = fields.specification()
    fields.finish()
    return TemplateFields(name, description, spec)


def read_schedule(body: object) -> ScheduleFields:
    """Of `{"name", "cluster", "cron", "zone"?, "overlap"?, "spec", "enabled"?}`. Raises as `read_template`."""
    fields = _Fields(body, {"name", "cluster", "cron", "zone", "overlap", "spec", "enabled"})
    name = fields.text("name", RUN_NAME_MAX - NUMBER_ROOM, required=True)
    for fault in name_faults(name) if name else []:
        fields.breaks("name", fault)
    cron, zone = fields.text("cron", 100, required=True), fields.text("zone", 64) or "UTC"
    if cron and (fault := faults_of_expression(cron)):
        fields.breaks("cron", fault)
    if fault := faults_of_zone(zone):
        fields.breaks("zone", fault)
    overlap = fields.text("overlap", 20) or Overlap.SKIP
    if overlap not in list(Overlap):
        fields.breaks("overlap", f"must be one of {', '.join(Overlap)}")
    enabled = fields.body.get("enabled")
    if enabled is not None and not isinstance(enabled, bool):
        fields.breaks("enabled", "must be true or false")
    cluster, spec = fields.text("cluster", 100, required=True), fields.specification()
    fields.finish()
    return ScheduleFields(name, cluster, cron, zone, Overlap(overlap), spec, enabled is not False)


class _Fields:
    """The fields of a body, with what is wrong with them."""

    def __init__(self, body: object, known: set[str]) -> None:
        if not isinstance(body, dict):
            raise ValidationError.of([{"field": "body", "rule": "must be an object"}])
        self.body: dict[str, Any] = body
        self.unknown = sorted(set(body) - known)
        self.broken: list[Detail] = []

    def breaks(self, field: str, rule: str) -> None:
        self.broken.append({"field": field, "rule": rule})

    def text(self, field: str, longest: int, required: bool = False) -> str:
        value = self.body.get(field)
        if value is None or value == "":
            if required:
                self.breaks(field, "is required")
            return ""
        if not isinstance(value, str):
            self.breaks(field, "must be text")
            return ""
        if len(value) > longest or not value.isprintable() or not value.strip():
            self.breaks(field, f"must be printable text of at most {longest} characters")
            return ""
        return value.strip()

    def specification(self) -> str:
        value = self.body.get("spec")
        if not isinstance(value, dict):
            self.breaks("spec", "is required" if value is None else "must be an object")
            return ""
        text = json.dumps(value, ensure_ascii=False)
        if len(text.encode(errors="surrogatepass")) > SPEC_MAX:
            self.breaks("spec", f"must be at most {SPEC_MAX // 1024} KiB of JSON")
        return text

    def finish(self) -> None:
        if self.unknown:
            unknown: list[Detail] = [{"field": name, "rule": NOT_A_FIELD} for name in self.unknown]
            raise UnknownField.of(self.unknown, unknown + self.broken)
        if self.broken:
            raise ValidationError.of(self.broken)
