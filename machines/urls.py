"""Routes of machines: the agents' door, and pages for people."""

from django.urls import URLPattern, path

from machines import views, views_credentials, views_volumes
from machines.orders import DataKind
from machines.views_agent import join

urlpatterns: list[URLPattern] = [
    path("agent/v1/join", join, name="agent-join"),
    path("o/<slug:org>/w/<slug:ws>/machines", views.machines, name="machines"),
    path("o/<slug:org>/w/<slug:ws>/machines/add", views.add_machine, name="add_machine"),
    path("o/<slug:org>/w/<slug:ws>/machines/<slug:cluster>/<str:name>", views.machine, name="machine"),
    path("o/<slug:org>/w/<slug:ws>/machines/<slug:cluster>/<str:name>/drain", views.drain, name="drain"),
    path("o/<slug:org>/w/<slug:ws>/machines/<slug:cluster>/<str:name>/cordon", views.cordon, name="cordon"),
    path("o/<slug:org>/w/<slug:ws>/machines/<slug:cluster>/<str:name>/uncordon", views.uncordon, name="uncordon"),
    path("o/<slug:org>/w/<slug:ws>/machines/<slug:cluster>/<str:name>/remove", views.remove, name="remove_machine"),
    path("o/<slug:org>/w/<slug:ws>/credentials", views_credentials.credentials, name="credentials"),
    path("o/<slug:org>/w/<slug:ws>/credentials/<str:name>", views_credentials.credential, name="credential"),
    path(
        "o/<slug:org>/w/<slug:ws>/credentials/<str:name>/remove",
        views_credentials.remove_credential,
        name="remove_credential",
    ),
    path("o/<slug:org>/w/<slug:ws>/drives", views_volumes.volumes, {"kind": DataKind.DRIVE}, name="drives"),
    path("o/<slug:org>/w/<slug:ws>/drives/<str:name>", views_volumes.volume, {"kind": DataKind.DRIVE}, name="drive"),
    path(
        "o/<slug:org>/w/<slug:ws>/drives/<str:name>/remove",
        views_volumes.remove,
        {"kind": DataKind.DRIVE},
        name="remove_drive",
    ),
    path("o/<slug:org>/w/<slug:ws>/models", views_volumes.volumes, {"kind": DataKind.MODEL}, name="models"),
    path("o/<slug:org>/w/<slug:ws>/models/<str:name>", views_volumes.volume, {"kind": DataKind.MODEL}, name="model"),
    path(
        "o/<slug:org>/w/<slug:ws>/models/<str:name>/remove",
        views_volumes.remove,
        {"kind": DataKind.MODEL},
        name="remove_model",
    ),
]
