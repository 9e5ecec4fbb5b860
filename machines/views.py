"""Pages of machines: what there is, its room and who uses it; adding one; cordons and removal."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from astraconsole.errors import AstraError, ValidationError
from astraconsole.tenancy.pages import ask, context_of
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access, get_access
from astraconsole.web import is_partial
from machines import queries, services
from runs.queries import use_of_machines
from runs.services.draining import drain_machine

if TYPE_CHECKING:
    from machines.models import Gpu, Machine

CORDONING = "It gets no new work. What it runs goes on."
DRAINING = "It gets no new work. What it runs is stopped, with its grace, and queued again at no cost to its retries."
REMOVING = "Its token stops working, its agent stops what it runs, and that work starts again elsewhere."
SKEW_SHOWN = 2.0  # seconds: less is the network


@dataclass(frozen=True)
class Slot:
    """One GPU as the page draws it."""

    gpu: "Gpu"
    held: bool


@dataclass(frozen=True)
class Card:
    """One machine as the page shows it. Cores in thousandths, memory in bytes."""

    machine: "Machine"
    cpu_milli: int
    memory_bytes: int
    slots: tuple[Slot, ...]
    may_manage: bool

    @property
    def state(self) -> str:
        """A machine that is lost is that first of all."""
        machine = self.machine
        if machine.state != "Ready" or machine.cordoned_at is None:
            return machine.state
        if not machine.draining:
            return "Cordoned"
        return "Draining" if self.cpu_milli or self.memory_bytes or self.held else "Drained"

    @property
    def held(self) -> int:
        return sum(slot.held for slot in self.slots)

    @property
    def gpu_models(self) -> str:
        return ", ".join(dict.fromkeys(slot.gpu.model for slot in self.slots))

    @property
    def simulated(self) -> bool:
        return any(slot.gpu.simulated for slot in self.slots)

    @property
    def skew(self) -> float | None:
        """Worth telling only when it is more than the network's delay."""
        skew = self.machine.clock_skew_seconds
        return None if skew is None or abs(skew) < SKEW_SHOWN else skew


@require_GET
def machines(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    context = _context(access, cards=_cards(access, list(queries.machines_for(access))))
    return render(request, "machines/_list.html" if is_partial(request) else "machines/list.html", context)


def _cards(access: Access, machines: "list[Machine]") -> list[Card]:
    use = use_of_machines([machine.pk for machine in machines])
    clusters = {machine.cluster_id: machine.cluster for machine in machines}
    manages = {pk: queries.may_manage_machines(access, cluster) for pk, cluster in clusters.items()}
    cards = []
    for machine in machines:
        cpu_milli, memory_bytes, held = use.get(machine.pk, (0, 0, ()))
        slots = tuple(Slot(gpu, gpu.index in held) for gpu in machine.gpus.all())
        cards.append(Card(machine, cpu_milli, memory_bytes, slots, manages[machine.cluster_id]))
    return cards


@never_cache
@require_http_methods(["GET", "POST"])
def add_machine(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    """A POST makes a one-time token and shows the command that joins a machine with it, the only time."""
    access = get_access(request.user, org, ws)
    if not access.user.is_staff:
        access.require(Action.MANAGE)
    clusters = [cluster.slug for cluster in queries.clusters_for(access)]
    cluster = request.POST.get("cluster", "").strip() or (clusters[0] if clusters else "")
    context = _context(access, clusters=clusters, cluster=cluster, url=request.build_absolute_uri("/").rstrip("/"))
    if request.method == "GET":
        return render(request, "machines/add.html", context)
    try:
        secret = services.create_join_token(access, cluster)
    except AstraError as error:
        return render(request, "machines/add.html", context | {"error": error}, status=error.status)
    return render(request, "machines/add.html", context | {"secret": secret, "clusters": clusters or [cluster]})


@require_GET
def machine(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    """One machine, and its history, newest first."""
    access = get_access(request.user, org, ws)
    found = queries.get_machine(access, cluster, name)
    history = queries.history_of(found)[::-1]
    context = _context(access, card=_cards(access, [found])[0], machine=found, history=history)
    return render(request, "machines/_machine.html" if is_partial(request) else "machines/machine.html", context)


@require_http_methods(["GET", "POST"])
def cordon(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    return _close(
        request, _machine(request, org, ws, cluster, name), "cordon", CORDONING, services.cordon, "takes no new work"
    )


@require_http_methods(["GET", "POST"])
def drain(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    done = "takes no new work, and gives back what it runs"
    return _close(request, _machine(request, org, ws, cluster, name), "drain", DRAINING, drain_machine, done)


def _close(
    request: HttpRequest,
    of: "tuple[Access, Machine]",
    what: str,
    consequence: str,
    service: "Callable[[Access, Machine, str, datetime], None]",
    done: str,
) -> HttpResponse:
    """Ask for a reason, and take the machine out of service with it."""
    access, machine = of
    asked = {"consequence": consequence, "asks_reason": "shown to everybody", "reason_required": True}
    if request.method == "GET":
        return _ask(request, access, machine, what, what.capitalize(), **asked)
    try:
        service(access, machine, request.POST.get("reason", ""), timezone.now())
    except ValidationError as error:
        return _ask(request, access, machine, what, what.capitalize(), error=error, **asked)
    messages.success(request, f"{machine.name} {done}")
    return redirect("machines", *_args(access))


@require_POST
def uncordon(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    access, machine = _machine(request, org, ws, cluster, name)
    services.uncordon(access, machine, timezone.now())
    messages.success(request, f"{name} takes work again")
    return redirect("machines", org, ws)


@require_http_methods(["GET", "POST"])
def remove(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    access, machine = _machine(request, org, ws, cluster, name)
    typed = request.POST.get("typed", "").strip()
    if request.method == "POST" and typed == name:
        services.remove(access, machine)
        messages.success(request, f"{name} was removed")
        return redirect("machines", org, ws)
    return _ask(
        request,
        access,
        machine,
        "remove",
        "Remove machine",
        consequence=REMOVING,
        warning="The logs on it are lost.",
        typed=name,
        typed_error=f"{typed or 'nothing'} is not its name" if request.method == "POST" else "",
        dangerous=True,
    )


def _machine(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> "tuple[Access, Machine]":
    access = get_access(request.user, org, ws)
    if not access.user.is_staff:
        access.require(Action.MANAGE)
    return access, queries.get_machine(access, cluster, name)


def _ask(request: HttpRequest, access: Access, machine: "Machine", what: str, verb: str, **more: Any) -> HttpResponse:
    return ask(
        request,
        access,
        section=("Machines", "machines"),
        name=machine.name,
        question=f"{what.capitalize()} {machine.name}?",
        verb=verb,
        back=reverse("machine", args=[*_args(access), machine.cluster.slug, machine.name]),
        **more,
    )


def _args(access: Access) -> list[str]:
    return [access.workspace.organisation.slug, access.workspace.slug]


def _context(access: Access, **more: Any) -> dict[str, Any]:
    return context_of(access, may_add=access.user.is_staff or access.allows(Action.MANAGE), **more)
