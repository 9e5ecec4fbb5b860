"""Routes of this app."""

from django.urls import URLPattern, path

from machines.views_agent import join

urlpatterns: list[URLPattern] = [
    path("agent/v1/join", join, name="agent-join"),
]
