"""The console's JSON API, as the command line speaks it."""

from collections.abc import Iterator
from typing import Any

import httpx

from astraconsole.cli import config as saved
from astraconsole.cli.problems import NotConfigured, Problem, Refused, Unreachable

TIMEOUT_SECONDS = 30.0
NO_CLUSTER = "the workspace has no cluster yet: add a machine in the console"


class Client:
    """Paths given to the methods are those below a cluster's `api/`; `workspace` asks above it.

    Raises Refused with the API's code and message, Unreachable when nobody answers.
    """

    def __init__(self, config: saved.Config, transport: httpx.BaseTransport | None = None) -> None:
        saved.require(config, "url", "token", "organisation", "workspace")
        self.config = config
        headers = {"Authorization": f"Bearer {config.token}"}
        base = f"{config.url.rstrip('/')}/api/v1/orgs/{config.organisation}/workspaces/{config.workspace}/"
        self.http = httpx.Client(base_url=base, headers=headers, timeout=TIMEOUT_SECONDS, transport=transport)
        self._cluster = config.cluster

    @property
    def cluster(self) -> str:
        """The chosen cluster, else the workspace's first."""
        if not self._cluster:
            clusters = self.workspace("GET", "clusters")["items"]
            if not clusters:
                raise Problem(NO_CLUSTER)
            self._cluster = str(clusters[0]["name"])
        return self._cluster

    def get(self, path: str, **parameters: Any) -> Any:
        return self.workspace("GET", f"clusters/{self.cluster}/api/{path}", params=parameters)

    def post(self, path: str, body: Any) -> Any:
        return self.workspace("POST", f"clusters/{self.cluster}/api/{path}", json=body)

    def delete(self, path: str) -> None:
        self.workspace("DELETE", f"clusters/{self.cluster}/api/{path}")

    def every(self, path: str, **parameters: Any) -> Iterator[Any]:
        """All items of a list of the workspace, page by page."""
        after: dict[str, str] = {}
        while True:
            page = self.workspace("GET", path, params={"limit": 500, **parameters, **after})
            yield from page["items"]
            if page["next"] is None:
                return
            after = {"after": page["next"]}

    def page_of(self, run: str) -> str:
        where = self.config
        return f"{where.url.rstrip('/')}/o/{where.organisation}/w/{where.workspace}/jobs/{self.cluster}/{run}"

    def workspace(self, method: str, path: str, **options: Any) -> Any:
        try:
            answer = self.http.request(method, path, **options)
        except httpx.TransportError as error:
            raise Unreachable(f"no answer from {self.config.url}: {error}") from error
        if answer.is_success:
            return answer.json() if answer.content else None
        raise _refusal(answer)


def connect() -> Client:
    """A client by the saved configuration and the environment."""
    return Client(saved.load())


def _refusal(answer: httpx.Response) -> Problem:
    try:
        body = answer.json()
        return Refused(body["code"], body["message"], body.get("detail", []))
    except (ValueError, KeyError, TypeError):
        return NotConfigured(f"{answer.request.url} is not an Astra console: it answered {answer.status_code}")
