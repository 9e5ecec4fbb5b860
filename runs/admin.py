"""Staff's view of runs: to read. Only services change a run, so that every change has its history and its effects."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from machines.admin import ReadOnly
from runs.models import Attempt, Run, Transition, Worker


class TransitionInline(ReadOnly, admin.TabularInline):
    model = Transition
    fields = ["at", "state", "reason", "actor"]
    ordering = ["id"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Transition]:
        """The run's own moves: its workers may be thousands."""
        return super().get_queryset(request).filter(worker=None)


class AttemptInline(ReadOnly, admin.TabularInline):
    model = Attempt
    fields = [
        "number",
        "uid",
        "machine",
        "gpu_indexes",
        "placed_at",
        "ended_at",
        "released_at",
        "exit_code",
        "end_reason",
    ]
    ordering = ["number"]


@admin.register(Run)
class RunAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ["name", "namespace", "state", "reason", "created_by", "created_at", "deleted_at"]
    list_select_related = ["namespace__workspace__organisation", "namespace__cluster", "created_by"]
    list_filter = ["state", "namespace__cluster"]
    search_fields = ["name", "uid", "created_by__username"]
    show_full_result_count = False  # one more count of the whole table at each page
    inlines = [TransitionInline]


@admin.register(Worker)
class WorkerAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ["name", "run", "state", "reason", "attempt_number", "restarts", "exit_code"]
    list_select_related = ["run"]
    list_filter = ["state"]
    search_fields = ["name", "uid"]
    show_full_result_count = False
    inlines = [AttemptInline]
