"""Staff's pages of clusters, shares, machines, their credentials, drives and models, and reports that could not be
applied. No secret is ever shown."""

from django.contrib import admin
from django.db.models import QuerySet
from django.forms import BaseModelFormSet, ModelForm
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import mark_safe

from astraconsole.tenancy import audit
from astraconsole.tenancy.audit import Did, Kind
from machines import inbox
from machines.models import (
    Cluster,
    Credential,
    DataOnMachine,
    Gpu,
    JoinToken,
    Machine,
    MachineState,
    Namespace,
    SetAsideReport,
    Volume,
)


class ReadOnly:
    """What machines and services write is looked at here, not changed."""

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


def record_share(request: HttpRequest, share: Namespace, change: bool) -> None:
    """What staff give a workspace of a cluster, in the workspace's events."""
    limits = {"GPUs": share.quota_gpus, "runs": share.quota_runs, "thousandths of cores": share.quota_cpu_milli}
    limits["bytes of memory"] = share.quota_memory_bytes
    told = [f"{limit} {what}" for what, limit in limits.items() if limit is not None] or ["no limit"]
    told += [f"weight {share.weight:g}", f"priority at most {share.max_priority}"]
    did = Did.CHANGED if change else Did.ADDED
    actor = request.user.get_username()
    audit.record_by(share.workspace, Kind.QUOTA, share.cluster.slug, did, ", ".join(told), actor, timezone.now())


class NamespaceInline(admin.TabularInline):
    model = Namespace
    extra = 0


@admin.register(Cluster)
class ClusterAdmin(admin.ModelAdmin):
    list_display = ("slug", "organisation", "created_at")
    list_filter = ("organisation",)
    readonly_fields = ("uid", "created_at")
    inlines = (NamespaceInline,)

    def save_formset(self, request: HttpRequest, form: ModelForm, formset: BaseModelFormSet, change: bool) -> None:
        super().save_formset(request, form, formset, change)
        for obj in formset.new_objects:
            record_share(request, obj, change=False)
        for obj, _ in formset.changed_objects:
            record_share(request, obj, change=True)


@admin.register(Namespace)
class NamespaceAdmin(admin.ModelAdmin):
    list_display = ("workspace", "cluster", "quota_gpus", "quota_runs", "weight", "max_priority", "pools")
    list_filter = ("cluster",)
    list_select_related = ("workspace__organisation", "cluster")

    def save_model(self, request: HttpRequest, obj: Namespace, form: ModelForm, change: bool) -> None:
        super().save_model(request, obj, form, change)
        record_share(request, obj, change)


class GpuInline(ReadOnly, admin.TabularInline):
    model = Gpu
    extra = 0


@admin.register(Machine)
class MachineAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ("name", "cluster", "state", "cordon_reason", "runtime", "last_seen_at", "agent_version")
    list_filter = ("state", "cluster")
    list_select_related = ("cluster",)
    search_fields = ("name", "hostname")
    exclude = ("token_digest",)
    inlines = (GpuInline,)


@admin.register(JoinToken)
class JoinTokenAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ("id", "cluster", "created_by", "created_at", "expires_at", "used_at", "machine")
    list_select_related = ("cluster", "created_by", "machine")
    exclude = ("digest",)


class DataAdmin(ReadOnly, admin.ModelAdmin):
    """What workers need beside their image. Workspaces define it on their own pages, which tell machines of each
    change."""

    list_select_related = ("workspace__organisation", "created_by")
    list_filter = ("workspace__organisation",)
    search_fields = ("name", "workspace__slug", "workspace__organisation__slug")
    readonly_fields = ("on_machines",)

    @admin.display(description="On machines")
    def on_machines(self, item: Credential | Volume) -> str:
        told = DataOnMachine.objects.filter(uid=item.uid).exclude(machine__state=MachineState.REMOVED)
        rows = told.order_by("machine__cluster__slug", "machine__name").values_list(
            "machine__cluster__slug", "machine__name", "state", "message"
        )
        return format_html_join(mark_safe("<br>"), "{}/{}: {} {}", rows) or "no machine has reported it"


@admin.register(Credential)
class CredentialAdmin(DataAdmin):
    list_display = ("name", "workspace", "provider", "reference", "created_by", "changed_at")
    list_filter = ("provider", "workspace__organisation")


@admin.register(Volume)
class VolumeAdmin(DataAdmin):
    list_display = ("name", "kind", "workspace", "form", "source", "read_only", "created_by", "created_at")
    list_filter = ("kind", "form", "workspace__organisation")


@admin.register(SetAsideReport)
class SetAsideReportAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ("set_aside_at", "cluster", "machine", "attempt", "seq", "error")
    list_filter = ("cluster",)
    list_select_related = ("cluster", "machine")
    exclude = ("payload",)
    actions = ("put_back",)

    @admin.action(description="Apply again", permissions=["view"])
    def put_back(self, request: HttpRequest, items: QuerySet[SetAsideReport]) -> None:
        with_machine = items.exclude(machine=None).select_related("machine")
        for item in with_machine.order_by("pk"):
            inbox.put_back(item)
        self.message_user(request, "Put back into the inbox; what still cannot be applied comes back here.")
