"""What every page of a workspace hands to its template, and the question before something that cannot be undone."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from astraconsole.errors import AstraError
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from astraconsole.web import is_partial


def context_of(access: Access, **more: Any) -> dict[str, Any]:
    """The workspace at hand, and what this person may do there: with runs, templates and schedules (`may_write`); with
    members, credentials, drives and models (`may_manage`)."""
    return {
        "access": access,
        "org": access.workspace.organisation.slug,
        "ws": access.workspace.slug,
        "may_write": access.allows(Action.WRITE),
        "may_manage": access.allows(Action.MANAGE),
        **more,
    }


def ask(
    request: HttpRequest,
    access: Access | None,
    *,
    section: tuple[str, str],
    question: str,
    verb: str,
    back: str,
    error: AstraError | None = None,
    **more: Any,
) -> HttpResponse:
    """In a dialog, or as a page. `access`: None for what is no workspace's. `section`: the name and the route of the
    list that it is about; `back`: where Cancel leads. The answer is a POST to where this was asked; `error`: why that
    was refused."""
    asked = {"section": section, "question": question, "verb": verb, "back": back, "error": error, **more}
    context = {**(context_of(access) if access else {}), **asked, "action": request.path}
    template = "_ask.html" if is_partial(request) else "ask.html"
    return render(request, template, context, status=error.status if error else 200)
