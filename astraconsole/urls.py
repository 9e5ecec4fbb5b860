"""Every HTTP route: the console's pages, the JSON API, the agents' door, staff's admin."""

from django.contrib import admin
from django.urls import include, path

from astraconsole.api import api

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/", api.urls),
    path("", include("astraconsole.tenancy.urls")),
    path("", include("machines.urls")),
    path("", include("runs.urls")),
]
