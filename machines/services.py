"""What people and the console do with machines: joining, cordons, removal, local machines, leases. All atomic.

`machines.connections` writes what the machines themselves bring about.
"""

import re
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from astraconsole import events
from astraconsole.errors import (
    Conflict,
    Forbidden,
    JoinTokenExpired,
    JoinTokenUsed,
    MachineAlreadyExists,
    NotFound,
    Unauthenticated,
    ValidationError,
)
from astraconsole.json_bodies import REASON_LENGTH
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from astraconsole.tokens import digest, new_secret
from machines import dispatch, leases, queries
from machines.models import Assignment, Cluster, JoinToken, Liveness, Machine, MachineEvent, MachineState, Namespace
from machines.protocol import Close, JoinAnswer, JoinRequest

MACHINE_TOKEN_PREFIX = "astra_machine_"
JOIN_TOKEN_LIFETIME = timedelta(hours=24)
MACHINE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
CLUSTER_NAME = re.compile(r"[a-z0-9]([a-z0-9_-]{0,38}[a-z0-9])?")
CORDONED_PART = 5  # at most one in so many machines is cordoned by the console itself
LIVENESS_KEPT = timedelta(days=1)
_S = MachineState


# ---- joining ---------------------------------------------------------------------------------------------------------


@transaction.atomic
def create_join_token(access: Access, cluster_slug: str) -> str:
    """The secret that lets one machine join the cluster, once, within a day; kept nowhere.

    A workspace that has no cluster gets one of that name, or of its own where none is given. Raises Forbidden,
    NotFound, Conflict, ValidationError.
    """
    if queries.clusters_for(access).exists():
        cluster = queries.get_cluster(access, cluster_slug)
        _require_management(access, cluster)
    else:
        cluster = _create_cluster(access, cluster_slug or access.workspace.slug.lower())
    secret = new_secret("astra_join_")
    expires_at = timezone.now() + JOIN_TOKEN_LIFETIME
    JoinToken.objects.create(cluster=cluster, digest=digest(secret), created_by=access.user, expires_at=expires_at)
    return secret


def _create_cluster(access: Access, slug: str) -> Cluster:
    if not access.user.is_staff:
        access.require(Action.MANAGE)
    if not CLUSTER_NAME.fullmatch(slug):
        rule = "must be 1 to 40 lower-case letters, digits, `-` and `_`, with a letter or digit at either end"
        raise ValidationError(f"cluster {rule}", [{"field": "cluster", "rule": rule}])
    organisation = access.workspace.organisation
    cluster, is_new = Cluster.objects.get_or_create(organisation=organisation, slug=slug)
    if not is_new:
        raise Conflict(f"the organisation has a cluster {slug} already: staff can give the workspace a share of it")
    Namespace.objects.create(workspace=access.workspace, cluster=cluster)
    return cluster


def _require_management(access: Access, cluster: Cluster) -> None:
    if queries.may_manage_machines(access, cluster):
        return
    access.require(Action.MANAGE)
    raise Forbidden(f"other workspaces use {cluster} too: only staff may manage its machines")


@transaction.atomic
def join(token: str, request: JoinRequest, now: datetime) -> JoinAnswer:
    """Make a machine of the token's cluster, and its own token. A name whose machine was never seen is taken over.

    Raises Unauthenticated, JoinTokenExpired, JoinTokenUsed, ValidationError, MachineAlreadyExists.
    """
    join_token = (
        JoinToken.objects.select_for_update(of=("self",), no_key=True)
        .select_related("cluster")
        .filter(digest=digest(token))
        .first()
    )
    if join_token is None:
        raise Unauthenticated("this join token is not known: create a new one on the machines page")
    if join_token.used_at is not None:
        raise JoinTokenUsed("this join token was used already: a token is for one machine, once")
    if join_token.expires_at <= now:
        raise JoinTokenExpired("this join token has expired: create a new one on the machines page")
    machine, secret = _new_machine(join_token.cluster, request)
    join_token.used_at = now
    join_token.machine = machine
    join_token.save(update_fields=["used_at", "machine"])
    return JoinAnswer(machine=machine.name, token=secret, console=join_token.cluster.uid.hex)


def _new_machine(cluster: Cluster, request: JoinRequest) -> tuple[Machine, str]:
    if not MACHINE_NAME.fullmatch(request.name):
        rule = "must be 1 to 63 letters, digits, `.`, `_` and `-`, and begin and end with a letter or digit"
        raise ValidationError(f"name {rule}", [{"field": "name", "rule": rule}])
    secret = new_secret(MACHINE_TOKEN_PREFIX)
    columns = {
        "token_digest": digest(secret),
        "hostname": _column(request.hostname, 253),
        "agent_version": _column(request.agent_version, 40),
    }
    present = Machine.objects.filter(cluster=cluster, name=request.name).exclude(state=_S.REMOVED)
    if present.filter(state=_S.JOINING).update(**columns):
        return present.get(), secret
    try:
        with transaction.atomic():
            return Machine.objects.create(cluster=cluster, name=request.name, **columns), secret
    except IntegrityError:
        message = f"{cluster} has a machine {request.name} already: remove it first, or choose another name"
        raise MachineAlreadyExists(message) from None


def _column(text: str, length: int) -> str:
    return text.replace("\0", "")[:length]


# ---- the machines of a console that starts its own agents ------------------------------------------------------------


@transaction.atomic
def ensure_local_machine(cluster: Cluster, name: str) -> str:
    """A machine of this name, made if missing, and a new token for it: the earlier one no longer works."""
    secret = new_secret(MACHINE_TOKEN_PREFIX)
    machines = Machine.objects.select_for_update(no_key=True)
    machine = machines.filter(cluster=cluster, name=name).exclude(state=_S.REMOVED).first()
    if machine is None:
        Machine.objects.create(cluster=cluster, name=name, token_digest=digest(secret))
        return secret
    machine.token_digest = digest(secret)
    machine.connection = ""
    if machine.state == _S.STOPPING:
        machine.state, machine.state_reason = _S.JOINING, ""
    machine.save(update_fields=["token_digest", "connection", "state", "state_reason"])
    return secret


def set_stopping(machine_ids: Collection[int]) -> None:
    """These machines take no more work: their console is being stopped."""
    _change(machine_ids, (_S.JOINING, _S.READY), state=_S.STOPPING, state_reason="Console stopping")


# ---- cordons and removal ---------------------------------------------------------------------------------------------


def cordon(access: Access, machine: Machine, reason: str, now: datetime) -> None:
    """Give the machine no new work; what it runs goes on, also where it was draining. Raises Forbidden,
    ValidationError, NotFound."""
    _close(access, machine, reason, now, draining=False)


def drain(access: Access, machine: Machine, reason: str, now: datetime) -> None:
    """Cordon the machine, and mark it for what it runs to be given back (`runs.services.draining` does so). Raises
    Forbidden, ValidationError, NotFound."""
    _close(access, machine, reason, now, draining=True)


@transaction.atomic
def _close(access: Access, machine: Machine, reason: str, now: datetime, draining: bool) -> None:
    _require_management(access, machine.cluster)
    reason = reason.strip()
    if not reason or len(reason) > REASON_LENGTH or "\0" in reason:
        rule = f"must have 1 to {REASON_LENGTH} characters"
        raise ValidationError(f"reason {rule}", [{"field": "reason", "rule": rule}])
    _change_one(machine, cordoned_by=access.user, cordoned_at=now, cordon_reason=reason, draining=draining)
    _record([machine.pk], "Draining" if draining else "Cordoned", reason, access.actor, now)


@transaction.atomic
def uncordon(access: Access, machine: Machine, now: datetime) -> None:
    """Let the machine take work again, cordoned or draining; earlier failures are forgiven it. What is being given back
    is placed anew. Raises Forbidden, NotFound."""
    _require_management(access, machine.cluster)
    _change_one(machine, cordoned_by=None, cordoned_at=None, cordon_reason="", draining=False, trusted_since=now)
    _record([machine.pk], machine.state, "Takes work again", access.actor, now)


def cordon_failing(machine_id: int, reason: str, now: datetime) -> bool:
    """The console's own cordon. Not of the last machine that takes work, and not of more than a few of a cluster's at
    a time: where many fail, it is not the machines."""
    with transaction.atomic():
        cluster = Cluster.objects.select_for_update(no_key=True, of=("self",)).get(machines=machine_id)
        present = cluster.machines.exclude(state=_S.REMOVED)
        machines = list(present.values_list("pk", "state", "cordoned_at", "cordoned_by"))
        open_ones = {pk for pk, state, cordoned_at, _ in machines if state == _S.READY and cordoned_at is None}
        ours = sum(cordoned_at is not None and by is None for _, _, cordoned_at, by in machines)
        if machine_id not in open_ones or len(open_ones) < 2 or ours >= max(1, len(machines) // CORDONED_PART):
            return False
        _change([machine_id], (_S.READY,), cordoned_at=now, cordon_reason=reason)
        _record([machine_id], "Cordoned", reason, "console", now)
    return True


def remove(access: Access, machine: Machine) -> None:
    """Revoke the machine's token and have its agent stop what it runs. Its work is taken back like a lost machine's.

    Raises Forbidden, NotFound.
    """
    _require_management(access, machine.cluster)
    with transaction.atomic():
        reason = f"Removed by {access.actor}"
        _change_one(machine, state=_S.REMOVED, state_reason=reason, connection="")
        _record([machine.pk], _S.REMOVED, reason, access.actor, timezone.now())
        dispatch.close(machine.uid, Close.REMOVED, "this machine was removed from its cluster")


def _change_one(machine: Machine, **columns: object) -> None:
    if not _change([machine.pk], tuple(set(_S) - {_S.REMOVED}), **columns):
        raise NotFound(f"{machine} was removed")
    machine.refresh_from_db(fields=list(columns))


@transaction.atomic
def _change(machine_ids: Collection[int], states: Collection[MachineState], **columns: object) -> list[int]:
    """Write columns of those machines that are in one of `states`, in id order; wake the scheduler. Their ids."""
    machines = Machine.objects.select_for_update(no_key=True).filter(pk__in=machine_ids, state__in=states)
    cluster_of = dict(machines.order_by("pk").values_list("pk", "cluster_id"))
    Machine.objects.filter(pk__in=cluster_of).update(**columns)
    for cluster_id in set(cluster_of.values()):
        events.wake("schedule", cluster_id)
    return list(cluster_of)


def _record(machine_ids: Collection[int], state: str, reason: str, actor: str, now: datetime) -> None:
    clusters = Machine.objects.filter(pk__in=machine_ids).values_list("pk", "cluster_id")
    record_events(
        MachineEvent(machine_id=machine_id, cluster_id=cluster_id, state=state, reason=reason, actor=actor, at=now)
        for machine_id, cluster_id in clusters.order_by("pk")
    )


def record_events(entries: Iterable[MachineEvent]) -> None:
    """Entries of machines' histories; pages of the workspaces on their clusters are told."""
    written = MachineEvent.objects.bulk_create(entries)
    if written:
        clusters = {entry.cluster_id for entry in written}
        shares = Namespace.objects.filter(cluster__in=clusters).order_by()
        events.workspaces_changed(shares.values_list("workspace", flat=True).distinct())


# ---- leases ----------------------------------------------------------------------------------------------------------


def expire_leases(now: datetime) -> list[int]:
    """Make machines Lost whose lease has expired; returns those whose work is to be taken back.

    These are all machines that are lost or removed and still have orders, so a crash between this and taking the work
    back (`runs.services.lost`, in a transaction of its own: it locks runs before machines) is made good the next time.
    """
    length = timedelta(seconds=settings.MACHINE_LEASE_SECONDS)
    record_alive(leases.CHECK, leases.CHECK, now)
    processes = [leases.Alive(*row) for row in Liveness.objects.values_list("kind", "since", "seen_at")]
    with transaction.atomic():
        overdue = Machine.objects.select_for_update(no_key=True).filter(
            state__in=(_S.READY, _S.STOPPING), last_seen_at__lt=now - length
        )
        held = [leases.Lease(*row) for row in overdue.order_by("pk").values_list("pk", "last_seen_at")]
        lost = leases.expired(held, processes, now, length)
        changed = _change(lost, (_S.READY, _S.STOPPING), state=_S.LOST, state_reason=leases.LOST_REASON, connection="")
        _record(changed, _S.LOST, leases.LOST_REASON, "console", now)
    gone = Assignment.objects.filter(machine__state__in=(_S.LOST, _S.REMOVED), order__isnull=False)
    return sorted({*lost, *gone.values_list("machine_id", flat=True).distinct()})


def record_alive(process: str, kind: str, now: datetime) -> None:
    """A daphne or the lease check lives. After a pause it counts as alive since now only; rows of the dead go."""
    pause = leases.longest_pause(timedelta(seconds=settings.MACHINE_LEASE_SECONDS))
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO machines_liveness AS l (process, kind, since, seen_at) VALUES (%s, %s, %s, %s)
            ON CONFLICT (process) DO UPDATE SET
                since = CASE WHEN l.seen_at < %s THEN excluded.since ELSE l.since END,
                seen_at = GREATEST(l.seen_at, excluded.seen_at)""",
            [process, kind, now, now, now - pause],
        )
    Liveness.objects.filter(seen_at__lt=now - LIVENESS_KEPT).delete()
