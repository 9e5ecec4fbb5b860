"""Pages of runs and workers. Machines' pages are in `machines.urls`."""

from django.urls import path

from runs.views import (
    actions,
    agent,
    events,
    gpus,
    health,
    listing,
    logs,
    metrics,
    new_run,
    run,
    schedules,
    templates,
    worker,
)

urlpatterns = [
    path("metrics", health.metrics, name="metrics"),
    path("agent/v1/code/<uuid:attempt>", agent.code, name="agent-code"),
    path("o/<slug:org>/w/<slug:ws>", listing.home, name="workspace"),
    path("o/<slug:org>/w/<slug:ws>/runs", listing.runs, name="runs"),
    path("o/<slug:org>/w/<slug:ws>/runs/bulk", actions.bulk, name="bulk"),
    path("o/<slug:org>/w/<slug:ws>/new-run", new_run.new_run, name="new_run"),
    path("o/<slug:org>/w/<slug:ws>/new-run/check", new_run.check, name="check_run"),
    path("o/<slug:org>/w/<slug:ws>/templates", templates.templates, name="templates"),
    path("o/<slug:org>/w/<slug:ws>/save-template", templates.save_template, name="save_template"),
    path("o/<slug:org>/w/<slug:ws>/templates/<str:template>/remove", templates.remove_template, name="remove_template"),
    path("o/<slug:org>/w/<slug:ws>/schedules", schedules.schedules, name="schedules"),
    path("o/<slug:org>/w/<slug:ws>/new-schedule", schedules.new_schedule, name="new_schedule"),
    path("o/<slug:org>/w/<slug:ws>/schedules/<slug:name>", schedules.schedule, name="schedule"),
    path("o/<slug:org>/w/<slug:ws>/schedules/<slug:name>/run", schedules.run_schedule, name="run_schedule"),
    path("o/<slug:org>/w/<slug:ws>/schedules/<slug:name>/enable", schedules.enable_schedule, name="enable_schedule"),
    path("o/<slug:org>/w/<slug:ws>/schedules/<slug:name>/disable", schedules.disable_schedule, name="disable_schedule"),
    path("o/<slug:org>/w/<slug:ws>/schedules/<slug:name>/remove", schedules.remove_schedule, name="remove_schedule"),
    path("o/<slug:org>/w/<slug:ws>/jobs/<slug:cluster>/<slug:name>", run.run, name="run"),
    path("o/<slug:org>/w/<slug:ws>/jobs/<slug:cluster>/<slug:name>/charts", metrics.run_charts, name="run_charts"),
    path("o/<slug:org>/w/<slug:ws>/jobs/<slug:cluster>/<slug:name>/using", metrics.using, name="using"),
    path(
        "o/<slug:org>/w/<slug:ws>/workers/<slug:cluster>/<slug:name>/charts",
        metrics.worker_charts,
        name="worker_charts",
    ),
    path("o/<slug:org>/w/<slug:ws>/events", events.events, name="events"),
    path("o/<slug:org>/w/<slug:ws>/gpus", gpus.gpus, name="gpus"),
    path("o/<slug:org>/w/<slug:ws>/jobs/<slug:cluster>/<slug:name>/stop", actions.stop_run, name="stop_run"),
    path("o/<slug:org>/w/<slug:ws>/jobs/<slug:cluster>/<slug:name>/delete", actions.delete_run, name="delete_run"),
    path("o/<slug:org>/w/<slug:ws>/workers/<slug:cluster>/<slug:name>", worker.worker, name="worker"),
    path("o/<slug:org>/w/<slug:ws>/workers/<slug:cluster>/<slug:name>/log/lines", logs.log_lines, name="log_lines"),
    path(
        "o/<slug:org>/w/<slug:ws>/workers/<slug:cluster>/<slug:name>/log/download",
        logs.log_download,
        name="log_download",
    ),
    path("o/<slug:org>/w/<slug:ws>/workers/<slug:cluster>/<slug:name>/log/whole", logs.log_whole, name="log_whole"),
    path(
        "o/<slug:org>/w/<slug:ws>/jobs/<slug:cluster>/<slug:name>/log/lines", logs.run_log_lines, name="run_log_lines"
    ),
    path(
        "o/<slug:org>/w/<slug:ws>/jobs/<slug:cluster>/<slug:name>/log/download",
        logs.run_log_download,
        name="run_log_download",
    ),
    path("o/<slug:org>/w/<slug:ws>/workers/<slug:cluster>/<slug:name>/stop", actions.stop_worker, name="stop_worker"),
]
