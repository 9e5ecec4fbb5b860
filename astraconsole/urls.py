"""Every HTTP route: the console's pages, the JSON API, the agents' door, staff's admin."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from astraconsole.api import api

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1", RedirectView.as_view(url="/api/v1/docs")),
    path("api/v1/", api.urls),
    path("", include("astraconsole.tenancy.urls")),
    path("", include("machines.urls")),
    path("", include("runs.urls")),
]

handler400 = "astraconsole.web.bad_request"
handler403 = "astraconsole.web.forbidden"
handler404 = "astraconsole.web.not_found"
handler500 = "astraconsole.web.server_error"
