"""The console's JSON API, as the command line speaks it."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from astraconsole.cli import config as saved
from astraconsole.cli.http import Answer, Session
from astraconsole.cli.problems import NotConfigured, Problem, Refused, Unreachable
from astraconsole.errors import NotFound

NO_CLUSTER = "the workspace has no cluster yet: add a machine in the console"
PAGE_ITEMS = 500
AWAY = range(502, 505)  # what a proxy answers in the console's place


def path(*parts: str) -> str:
    """Names as parts of an address, whatever characters they have."""
    return "/".join(quote(part, safe="", errors="surrogatepass") for part in parts)


class Api:
    """The API's root, for what is no workspace's. Without a token nobody asks.

    Raises Refused with the API's code and message, Unreachable when nobody answers, NotConfigured where no console is.
    """

    def __init__(self, url: str, token: str = "") -> None:
        if not token.isascii() or not token.isprintable():
            raise NotConfigured("the API token has characters that no token has: see ASTRA_TOKEN, or `astra login`")
        self.session = Session(url)
        self._headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}

    def call(self, method: str, path: str, params: Mapping[str, Any] = {}, json: Any = None) -> Any:
        """`path` below `/api/v1/`. The answer's document; None where it has none."""
        query = f"?{urlencode({name: _parameter(value) for name, value in params.items()})}" if params else ""
        body = None if json is None else _encoded(json)
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        answer = self.session.request(method, f"/api/v1/{path}{query}", body, headers)
        if 200 <= answer.status < 300:
            return self._document(answer) if answer.body else None
        raise self._refusal(answer)

    def lines(self, path: str, params: Mapping[str, Any], headers: Mapping[str, str]) -> Iterator[str]:
        """The lines of an answer that goes on. Raises Refused, Unreachable, NotConfigured."""
        query = urlencode({name: _parameter(value) for name, value in params.items()})
        answer = self.session.lines(f"/api/v1/{path}?{query}", {**self._headers, **headers})
        if isinstance(answer, Answer):
            raise self._refusal(answer)
        return answer

    def _document(self, answer: Answer) -> Any:
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            raise self._no_console(answer) from None

    def _refusal(self, answer: Answer) -> Problem:
        try:
            body = json.loads(answer.body)
            return Refused(str(body["code"]), str(body["message"]), body.get("detail", []))
        except (ValueError, KeyError, TypeError, RecursionError):
            return self._no_console(answer)

    def _no_console(self, answer: Answer) -> Problem:
        base = self.session.base
        if answer.status in AWAY:
            return Unreachable(f"no answer from {base}: its proxy answers {answer.status}")
        if 300 <= answer.status < 400:
            return NotConfigured(f"{base} is not the console's address: it leads to {answer.headers.get('Location')}")
        return NotConfigured(f"{base} is not an Astra console: it answered {answer.status} with no JSON of its API")


class Client:
    """Paths given to the methods are those below a cluster's `api/`; `workspace` asks above it. Raises as Api."""

    def __init__(self, config: saved.Config) -> None:
        saved.require(config, "url", "token", "organisation", "workspace")
        self.config = config
        self.api = Api(config.url, config.token)
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
        return self.workspace("GET", self._below_cluster(path), params=parameters)

    def post(self, path: str, body: Any, **parameters: Any) -> Any:
        return self.workspace("POST", self._below_cluster(path), params=parameters, json=body)

    def delete(self, path: str) -> None:
        self.workspace("DELETE", self._below_cluster(path))

    def run_or_worker(self, name: str) -> tuple[Any, Any]:
        """(the run, None), or (None, the worker): a name that is no run is a worker's. Raises Refused as get."""
        for kind in ("jobs", "tasks"):
            try:
                found = self.get(path(kind, name))
                return (found, None) if kind == "jobs" else (None, found)
            except Refused as refusal:
                if refusal.code != NotFound.code:
                    raise
        raise Refused(NotFound.code, f"there is no run and no worker {name} on {self.cluster}", [])

    def every(self, path: str, **parameters: Any) -> Iterator[Any]:
        """All items of a list of the workspace, page by page."""
        return self._pages(lambda page: self.workspace("GET", path, params=page), parameters)

    def every_of_cluster(self, path: str, **parameters: Any) -> Iterator[Any]:
        """All items of a list of the cluster."""
        return self._pages(lambda page: self.get(path, **page), parameters)

    def _pages(self, ask: Callable[[dict[str, Any]], Any], parameters: dict[str, Any]) -> Iterator[Any]:
        after: dict[str, str] = {}
        while True:
            page = ask({"limit": PAGE_ITEMS, **parameters, **after})
            yield from page["items"]
            if page["next"] is None:
                return
            after = {"after": page["next"]}

    def page_of(self, run: str) -> str:
        where = self.config
        place = path("o", where.organisation, "w", where.workspace, "jobs", self.cluster, run)
        return f"{where.url.rstrip('/')}/{place}"

    def workspace(self, method: str, below: str, params: Mapping[str, Any] = {}, json: Any = None) -> Any:
        return self.api.call(method, self._place(below), params, json)

    def lines(self, below: str, params: Mapping[str, Any], headers: Mapping[str, str]) -> Iterator[str]:
        """Of an answer of the workspace that goes on."""
        return self.api.lines(self._place(below), params, headers)

    def _place(self, below: str) -> str:
        return f"{path('orgs', self.config.organisation, 'workspaces', self.config.workspace)}/{below}"

    def _below_cluster(self, below: str) -> str:
        return f"{path('clusters', self.cluster, 'api')}/{below}"


def connect() -> Client:
    """A client by the saved configuration and the environment."""
    return Client(saved.load())


def _parameter(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _encoded(body: Any) -> bytes:
    return json.dumps(body).encode()
