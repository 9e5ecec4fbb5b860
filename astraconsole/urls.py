"""Every HTTP route: the console's pages, the JSON API, the agents' door, staff's admin."""

from django.contrib import admin
from django.urls import path

urlpatterns = [
    path("admin/", admin.site.urls),
]
