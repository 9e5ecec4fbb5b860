"""Staff's view of tenancy. Secrets are not there to show: only digests are kept, and those stay out too."""

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.db.models import QuerySet
from django.http import HttpRequest

from astraconsole.tenancy.forms import StaffSignInForm
from astraconsole.tenancy.models import ApiToken, Membership, Organisation, User, Workspace

admin.site.login_form = StaffSignInForm
admin.site.register(User, UserAdmin)


class MembershipInline(admin.TabularInline):
    model = Membership
    extra = 0
    autocomplete_fields = ["user"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Membership]:
        return super().get_queryset(request).select_related("user")  # each row is headed by its person's name


@admin.register(Organisation)
class OrganisationAdmin(admin.ModelAdmin):
    list_display = ["slug", "name", "created_at"]
    search_fields = ["slug", "name"]


@admin.register(Workspace)
class WorkspaceAdmin(admin.ModelAdmin):
    list_display = ["slug", "organisation", "name", "created_at"]
    list_select_related = ["organisation"]
    list_filter = ["organisation"]
    search_fields = ["slug", "name", "organisation__slug"]
    autocomplete_fields = ["organisation"]
    inlines = [MembershipInline]


@admin.register(Membership)
class MembershipAdmin(admin.ModelAdmin):
    list_display = ["user", "workspace", "role"]
    list_select_related = ["user", "workspace__organisation"]
    list_filter = ["role"]
    search_fields = ["user__username", "workspace__slug"]
    autocomplete_fields = ["user", "workspace"]


@admin.register(ApiToken)
class ApiTokenAdmin(admin.ModelAdmin):
    """People make their own tokens; staff may see that they exist, and delete them."""

    list_display = ["user", "name", "prefix", "created_at", "last_used_at", "revoked_at"]
    list_select_related = ["user"]
    search_fields = ["user__username", "name", "prefix"]
    readonly_fields = fields = ["user", "name", "prefix", "created_at", "last_used_at", "revoked_at"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False
