"""Tags of every page: states, times, sizes, the side navigation."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django import template
from django.template import Context
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from heroicons.templatetags.heroicons import heroicon_micro

from astraconsole import json_bodies
from astraconsole.marks import SHAPES, mark_of
from astraconsole.tenancy.queries import workspaces_of
from runs import units

register = template.Library()


@register.simple_tag
def state(name: str, kind: str = "") -> SafeString:
    """A state with its mark: `{% state run.state %}`, or `{% state run.state "pill" %}`."""
    mark = mark_of(name)
    icon = mark_safe(SHAPES.get(mark.icon) or heroicon_micro(mark.icon, size=16, **{"class": "mark"}))
    return format_html('<span class="state {}" data-tone="{}">{}{}</span>', kind, mark.tone, icon, name)


@register.simple_tag
def when(at: datetime | None, how: str = "at", none: str = "–") -> SafeString:
    """A time: UTC from the server, made local by the script. `how`: at | ago | age | left."""
    if at is None:
        return format_html("{}", none)
    text = at.astimezone(UTC).strftime("%-d %b %Y %H:%M:%S UTC")
    return format_html('<time datetime="{}" data-as="{}" title="{}">{}</time>', json_bodies.moment(at), how, text, text)


# Kind of an event → the route of its page, and whether a cluster is part of the address.
PAGES_OF = {
    "run": ("run", True),
    "worker": ("worker", True),
    "machine": ("machine", True),
    "schedule": ("schedule", False),
    "credential": ("credential", False),
    "drive": ("drive", False),
    "model": ("model", False),
}


@register.simple_tag
def event_name(event: Any, org: str, ws: str) -> SafeString:
    """What an event is about, with a link to its page while it is there."""
    route, on_cluster = PAGES_OF.get(event.kind, ("", False))
    if not route or not event.exists:
        return format_html("<b>{}</b>", event.name)
    names = [event.cluster, event.name] if on_cluster else [event.name]
    return format_html('<a href="{}">{}</a>', reverse(route, args=[org, ws, *names]), event.name)


@register.simple_tag(takes_context=True)
def api(context: Context) -> str:
    """Where the JSON API is, for whoever reads this page."""
    address: str = context["request"].build_absolute_uri("/api/v1")
    return address


@register.filter
def moment(text: str | None) -> datetime | None:
    """A time that was stored as text (`last_failure.failed_at`)."""
    return datetime.fromisoformat(text) if text else None


@register.filter
def memory(size: int | None) -> str:
    return "–" if size is None else units.format_memory(size)


@register.filter
def cores(milli: int | None) -> str:
    return "–" if milli is None else units.format_cores(milli)


@register.filter
def measured(value: float | None, unit: str) -> str:
    """A metric's value with its unit: `2.5`, `97%`, `61.2 GiB`."""
    if value is None:
        return "–"
    if unit == "0–1":
        return f"{value:.0%}"
    return units.format_memory(round(value)) if unit == "bytes" else f"{value:.2f}".rstrip("0").rstrip(".")


@register.filter
def duration(seconds: float | None) -> str:
    """To the two units that matter: a run of 3 h 12 min 9 s is `3h12m`."""
    if seconds is None:
        return "–"
    whole = max(0, round(seconds))
    step = 3600 if whole >= 86400 else 60 if whole >= 3600 else 1
    return units.format_duration(whole // step * step)


@register.filter
def offset(seconds: float | None) -> str:
    """How long after something else: `+0.4s`, `+12s`, `+3m5s`."""
    if seconds is None:
        return "–"
    return f"+{seconds:.1f}s" if 0 < seconds < 9.95 else f"+{units.format_duration(max(0, round(seconds)))}"


@register.filter
def hours(value: float | None) -> str:
    """GPU-hours: `0.02`, `12.4`, `1,240`."""
    if value is None:
        return "–"
    if value >= 10:
        return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 or not value else f"{value:.4f}"


@register.filter
def clock_skew(seconds: float) -> str:
    """`40s behind`, `5m ahead`: of the console's clock."""
    return f"{units.format_duration(abs(round(seconds)))} {'ahead' if seconds > 0 else 'behind'}"


@register.filter
def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Item:
    """One line of the navigation; current on every route of `routes`."""

    label: str
    route: str
    icon: str
    routes: frozenset[str] = frozenset()


NAVIGATION: tuple[tuple[str, tuple[Item, ...]], ...] = (
    (
        "",
        (
            Item(
                "Runs", "runs", "play", frozenset({"run", "worker", "new_run", "stop_run", "delete_run", "stop_worker"})
            ),
            Item("Templates", "templates", "document-duplicate", frozenset({"save_template", "remove_template"})),
            Item("Schedules", "schedules", "clock", frozenset({"schedule", "new_schedule", "remove_schedule"})),
            Item("Events", "events", "bars-3-bottom-left", frozenset({"webhooks", "webhook", "remove_webhook"})),
        ),
    ),
    (
        "Cluster",
        (
            Item(
                "Machines",
                "machines",
                "server-stack",
                frozenset({"machine", "add_machine", "cordon", "drain", "remove_machine"}),
            ),
            Item("GPUs", "gpus", "cpu-chip"),
            Item("Usage", "usage", "chart-bar"),
        ),
    ),
    (
        "Workspace",
        (
            Item("Drives", "drives", "circle-stack", frozenset({"drive", "remove_drive"})),
            Item("Models", "models", "cube", frozenset({"model", "remove_model"})),
            Item("Credentials", "credentials", "key", frozenset({"credential", "remove_credential"})),
            Item("Members", "members", "users", frozenset({"member_remove"})),
        ),
    ),
)


@register.inclusion_tag("_sidebar.html", takes_context=True)
def sidebar(context: Context) -> dict[str, Any]:
    """The workspace switcher and the pages of the workspace at hand, if the page has one (`access` in its context)."""
    request = context["request"]
    access = context.get("access")
    current = request.resolver_match.url_name if request.resolver_match else ""
    return {
        "access": access,
        "workspaces": workspaces_of(request.user) if request.user.is_authenticated else [],
        "groups": [(title, [_link(item, access, current) for item in items]) for title, items in NAVIGATION]
        if access
        else [],
    }


def _link(item: Item, access: Any, current: str) -> dict[str, Any]:
    args = [access.workspace.organisation.slug, access.workspace.slug]
    return {
        "label": item.label,
        "icon": item.icon,
        "url": reverse(item.route, args=args),
        "current": current == item.route or current in item.routes,
    }
