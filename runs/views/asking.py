"""The question before something that cannot be undone: in a dialog, or as a page."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from astraconsole.tenancy.queries import Access
from astraconsole.web import is_partial
from runs.views.context import context_of


def ask(request: HttpRequest, access: Access, **context: Any) -> HttpResponse:
    template = "runs/_ask.html" if is_partial(request) else "runs/ask.html"
    return render(request, template, context_of(access, **context))
