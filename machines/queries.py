"""The only reads of machines for pages and the API: each starts from an Access."""

from collections.abc import Collection
from uuid import UUID

from django.db.models import Prefetch, QuerySet

from astraconsole.errors import NotFound
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from machines.models import (
    Cluster,
    Credential,
    DataOnMachine,
    Gpu,
    Machine,
    MachineEvent,
    MachineState,
    Namespace,
    Volume,
)
from machines.orders import DataKind

HISTORY_SHOWN = 200


def clusters_for(access: Access) -> QuerySet[Cluster]:
    """The clusters that the workspace has a namespace on, by name."""
    return Cluster.objects.filter(namespaces__workspace=access.workspace).order_by("slug")


def get_cluster(access: Access, cluster_slug: str) -> Cluster:
    """Raises NotFound, also for a cluster that exists but is none of the workspace's."""
    cluster = clusters_for(access).filter(slug=cluster_slug).first()
    if cluster is None:
        raise NotFound(f"the workspace has no cluster {cluster_slug}")
    return cluster


def machines_for(access: Access, cluster_slug: str | None = None) -> QuerySet[Machine]:
    """Those of the workspace's clusters (or of one), with cluster and GPUs (by index): two queries. None removed."""
    machines = (
        Machine.objects.filter(cluster__namespaces__workspace=access.workspace)
        .exclude(state=MachineState.REMOVED)
        .select_related("cluster", "cordoned_by")
        .prefetch_related(Prefetch("gpus", Gpu.objects.order_by("index")))
        .order_by("cluster__slug", "name")
    )
    return machines if cluster_slug is None else machines.filter(cluster__slug=cluster_slug)


def get_machine(access: Access, cluster_slug: str, name: str) -> Machine:
    """Raises NotFound."""
    machine = machines_for(access, cluster_slug).filter(name=name).first()
    if machine is None:
        raise NotFound(f"there is no machine {name} in {cluster_slug}")
    return machine


def history_of(machine: Machine) -> list[MachineEvent]:
    """Its newest entries, oldest first."""
    newest = MachineEvent.objects.filter(machine=machine).order_by("-id")[:HISTORY_SHOWN]
    return list(newest)[::-1]


def gpus_of(machine_ids: Collection[int]) -> dict[int, list[Gpu]]:
    """Each machine's GPUs by index, in one query; none for no machines."""
    found: dict[int, list[Gpu]] = {}
    if machine_ids:
        for gpu in Gpu.objects.filter(machine__in=machine_ids).order_by("machine", "index"):
            found.setdefault(gpu.machine_id, []).append(gpu)
    return found


def is_shared(access: Access, cluster: Cluster) -> bool:
    """Whether workspaces other than this one use the cluster."""
    return Namespace.objects.filter(cluster=cluster).exclude(workspace=access.workspace).exists()


def may_manage_machines(access: Access, cluster: Cluster) -> bool:
    """Staff always; admins of the workspace where no other workspace uses the cluster."""
    if access.user.is_staff:
        return True
    return access.allows(Action.MANAGE) and not is_shared(access, cluster)


def credentials_of(access: Access) -> list[Credential]:
    """The workspace's, by name."""
    return list(access.workspace.credentials.select_related("created_by").order_by("name"))


def get_credential(access: Access, name: str) -> Credential:
    """Raises NotFound."""
    found = access.workspace.credentials.select_related("created_by").filter(name=name).first()
    if found is None:
        raise NotFound(f"the workspace has no credential {name}")
    return found


def volumes_of(access: Access, kind: str) -> list[Volume]:
    """The workspace's drives or models, by name."""
    return list(access.workspace.volumes.filter(kind=kind).select_related("created_by").order_by("name"))


def get_volume(access: Access, kind: str, name: str) -> Volume:
    """Raises NotFound."""
    found = access.workspace.volumes.select_related("created_by").filter(kind=kind, name=name).first()
    if found is None:
        raise NotFound(f"the workspace has no {kind} {name}")
    return found


def names_of(access: Access) -> dict[str, set[str]]:
    """What the workspace's runs may name, as the New run form calls it: credentials, drives, model. Two queries."""
    names: dict[str, set[str]] = {"credentials": set(), "drives": set(), "model": set()}
    names["credentials"].update(access.workspace.credentials.values_list("name", flat=True))
    for kind, name in access.workspace.volumes.values_list("kind", "name"):
        names["drives" if kind == DataKind.DRIVE else "model"].add(name)
    return names


def data_on_machines(access: Access, uids: Collection[UUID]) -> dict[UUID, dict[int, DataOnMachine]]:
    """uid → machine id → how far that machine is: of the workspace's machines, in one query."""
    found: dict[UUID, dict[int, DataOnMachine]] = {}
    rows = DataOnMachine.objects.filter(uid__in=uids, machine__cluster__namespaces__workspace=access.workspace)
    for row in rows.exclude(machine__state=MachineState.REMOVED):
        found.setdefault(row.uid, {})[row.machine_id] = row
    return found
