"""A container registry of the tests' own: one busybox image, read only, with a login or without."""

import asyncio
import base64
import gzip
import hashlib
import json
from dataclasses import dataclass, field

from aiohttp import web

from tests.engine import busybox_root


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class Registry:
    """Serves `<address>/<anything>:test`. With `login` it refuses who does not give it."""

    login: tuple[str, str] | None = None
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifest: bytes = b""
    port: int = 0

    @property
    def image(self) -> str:
        return f"127.0.0.1:{self.port}/busybox:test"

    @property
    def digest(self) -> str:
        return _digest(self.manifest)

    async def start(self) -> None:
        self._fill(await asyncio.to_thread(busybox_root))
        app = web.Application()
        app.router.add_get("/v2/", self._answer_version)
        app.router.add_get("/v2/{name:.+}/manifests/{reference}", self._answer_manifest)
        app.router.add_get("/v2/{name:.+}/blobs/{digest}", self._answer_blob)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    def _fill(self, root: bytes) -> None:
        layer = gzip.compress(root, 1)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {},
                "rootfs": {"type": "layers", "diff_ids": [_digest(root)]},
            }
        ).encode()
        self.blobs = {_digest(data): data for data in (layer, config)}
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
                "config": _descriptor("application/vnd.docker.container.image.v1+json", config),
                "layers": [_descriptor("application/vnd.docker.image.rootfs.diff.tar.gzip", layer)],
            }
        ).encode()

    def _refused(self, request: web.Request) -> web.Response | None:
        if self.login is None:
            return None
        given = base64.b64encode(":".join(self.login).encode()).decode()
        if request.headers.get("Authorization") == f"Basic {given}":
            return None
        body = {"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}
        return web.json_response(body, status=401, headers={"WWW-Authenticate": 'Basic realm="tests"'})

    async def _answer_version(self, request: web.Request) -> web.Response:
        return self._refused(request) or web.json_response({})

    async def _answer_manifest(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        if request.match_info["reference"] not in ("test", self.digest):
            body = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
            return web.json_response(body, status=404)
        kind = json.loads(self.manifest)["mediaType"]
        return web.Response(body=self.manifest, content_type=kind, headers={"Docker-Content-Digest": self.digest})

    async def _answer_blob(self, request: web.Request) -> web.Response:
        return self._refused(request) or web.Response(body=self.blobs[request.match_info["digest"]])


def _descriptor(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "size": len(data), "digest": _digest(data)}
