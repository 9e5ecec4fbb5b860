"""The JSON API's way into a workspace: its addresses, and who may do what there."""

from collections.abc import Iterable

from django.http import HttpRequest

from astraconsole.json_bodies import refuse_unknown_parameters
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access, get_access

WORKSPACE = "/orgs/{slug:org}/workspaces/{slug:ws}"
CLUSTER = f"{WORKSPACE}/clusters/{{slug:cluster}}/api"


def access_of(
    request: HttpRequest, org: str, ws: str, action: Action = Action.READ, parameters: Iterable[str] = ()
) -> Access:
    """What may not be done is refused before anything is said about the parameters or the body.

    Raises NotFound, Forbidden; UnknownField for a parameter that is none of `parameters`."""
    access = get_access(request.auth, org, ws)  # type: ignore[attr-defined]
    access.require(action)
    refuse_unknown_parameters(request, parameters)
    return access
