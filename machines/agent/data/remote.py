"""A remote source as files with names, sizes and versions, read in ranges: through `fsspec`.

All of it blocks, and is called in threads.
"""

import asyncio
import importlib.util
import json
import os
import posixpath
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import fsspec
import msgspec

from machines.agent.data.problems import SourceAway, SourceChanged, SourceRefused
from machines.agent.data.roots import Roots
from machines.orders import VolumeSource

CONNECT_SECONDS, SILENCE_SECONDS = 30, 30
PARALLEL = 8  # requests at a time
DEPTH_MAX, FOLDERS_MAX = 32, 100_000
NAME_MAX, PATH_MAX = 255, 3000
SCHEMES = ("s3", "gs", "http", "https", "file")
VERSIONS = ("ETag", "etag", "md5Hash", "generation", "LastModified", "Last-Modified", "mtime")
GCS_MISSING = "this machine's agent cannot read gs:// sources: install astraconsole[gcs] beside it"


class Entry(msgspec.Struct, frozen=True):
    """One file. `name` below the copy's folder; `path` as the file system calls it; `size` is null where not said."""

    name: str
    path: str
    size: int | None
    version: str


class Piece(NamedTuple):
    data: bytes
    whole: bool  # the source gave all of it, whatever was asked


class Remote:
    """Of one source. `secret`: the value of its credential. Raises SourceRefused."""

    def __init__(self, source: VolumeSource, secret: bytes | None, roots: Roots) -> None:
        self.url = source.source
        self._scheme = self.url.partition("://")[0]
        if self._scheme not in SCHEMES:
            raise SourceRefused(f"{self.url} is no source that can be copied ({', '.join(SCHEMES)})")
        self._roots = roots
        self._root = self.url if self._is_http else self.url.partition("://")[2].rstrip("/")
        if self._scheme == "file":
            self._root = str(roots.inside(self._root))
        self._single = False
        options = _options(source, self._scheme, keys_of(secret))
        self._fs = fsspec.filesystem(
            "http" if self._is_http else self._scheme, skip_instance_cache=True, use_listings_cache=False, **options
        )

    @property
    def _is_http(self) -> bool:
        return self._scheme in ("http", "https")

    # ---- what there is -----------------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """All files, by name. Raises SourceAway, SourceRefused."""
        with _told(self.url):
            found = self._found()
        entries = sorted((self._entry(path, info) for path, info in found.items()), key=lambda entry: entry.name)
        if not entries:
            raise SourceAway(f"there is nothing at {self.url}")
        _check_names(entries)
        return entries

    @property
    def is_file(self) -> bool:
        """Whether an entry is the source itself: known after `entries`."""
        return self._single

    def _found(self) -> dict[str, Mapping[str, Any]]:
        self._single = not self.url.endswith("/")
        if self._is_http:
            if self._single:
                return {self.url: self._fs.info(self.url)}
            return self._listed_pages()
        found = self._walked() if self._scheme == "file" else self._fs.find(self._root, detail=True)
        self._single = list(found) == [self._root]
        return {path: info for path, info in found.items() if not _is_folder(path, info)}

    def _walked(self) -> dict[str, Mapping[str, Any]]:
        """Folders that links lead to are left out; a link to a file is that file."""
        if os.path.isfile(self._root):
            return {self._root: self._fs.info(self._root)}
        paths = [os.path.join(folder, name) for folder, _, names in os.walk(self._root) for name in names]
        return {path: self._fs.info(path) for path in paths if os.path.isfile(path)}

    def _listed_pages(self) -> dict[str, Mapping[str, Any]]:
        """The links of index pages, below their own address, and what each is: asked one by one. Written out, since
        the file system's own walk leaves out in silence what it cannot list."""
        files: list[str] = []
        folders = [self.url]
        for folder in folders:
            if folder.count("/") > self.url.count("/") + DEPTH_MAX or len(folders) > FOLDERS_MAX:
                raise SourceRefused(f"{self.url} has too many folders to be listed")
            for found in self._fs.ls(folder, detail=True):
                path = found["name"]
                if not set("?#") & set(path) and path.startswith(folder) and not path.endswith("/./"):
                    (folders if path.endswith("/") else files).append(path)
        with ThreadPoolExecutor(PARALLEL) as pool:
            return dict(zip(files, pool.map(self._fs.info, files), strict=True))

    def _entry(self, path: str, info: Mapping[str, Any]) -> Entry:
        name = posixpath.basename(path.rstrip("/")) if self._single else path[len(self._root.rstrip("/")) + 1 :]
        if self._is_http:
            name = unquote(posixpath.basename(urlsplit(path).path) or "index" if self._single else name)
        if self._scheme == "file":
            self._roots.inside(path)
        version = " ".join(str(info[key]) for key in VERSIONS if info.get(key))
        return Entry(name, path, info.get("size"), version)

    # ---- what is in it -----------------------------------------------------------------------------------------------

    def read(self, entry: Entry, start: int, end: int) -> Piece:
        """Bytes `start` up to `end`. Raises SourceAway, SourceChanged, SourceRefused."""
        if self._scheme == "file":
            self._roots.inside(entry.path)
        more: dict[str, Any] = {}
        if self._is_http and (tag := _strong_tag(entry)):
            more["headers"] = {"If-Match": tag}
        with _told(self.url):
            data: bytes = self._fs.cat_file(entry.path, start=start, end=end, **more)
        if len(data) > end - start:
            return Piece(data, whole=True)
        if len(data) < end - start:
            raise SourceAway(f"{self.url} broke off")
        return Piece(data, whole=False)

    def stream(self, entry: Entry, chunk: int) -> Iterator[bytes]:
        """All of it, from its start, for sources that give no ranges or no size."""
        with _told(self.url), self._fs.open(entry.path, "rb", block_size=0) as opened:
            while data := opened.read(chunk):
                yield data


def keys_of(secret: bytes | None) -> Mapping[str, Any]:
    """A credential's value as its keys; a plain one is a token. Raises SourceRefused."""
    if secret is None:
        return {}
    try:
        found = json.loads(secret)
    except (ValueError, RecursionError):
        return {"token": secret.decode(errors="replace").strip()}
    if not isinstance(found, dict):
        return {"token": secret.decode(errors="replace").strip()}
    return found


def _options(source: VolumeSource, scheme: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    if scheme == "s3":
        return _s3_options(source, keys)
    if scheme == "gs":
        if importlib.util.find_spec("gcsfs") is None:
            raise SourceRefused(GCS_MISSING)
        return {"token": dict(keys) if keys else "anon"}
    if scheme == "file":
        return {}
    return _http_options(source.source, scheme, keys)


def _http_options(url: str, scheme: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    headers = {"Accept-Encoding": "identity"}  # sizes and ranges are those of the file
    client: dict[str, Any] = {
        "timeout": aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS),
        "headers": headers,
    }
    if "username" in keys:  # not as the client's `auth`, which follows a redirect to another server
        login = (str(keys["username"]), str(keys.get("password", "")))
        headers["Authorization"] = aiohttp.encode_basic_auth(*login, encoding="utf-8")
    elif "token" in keys:
        headers["Authorization"] = f"Bearer {keys['token']}"
    proxy = None if proxy_bypass(urlsplit(url).hostname or "") else getproxies().get(scheme)
    return {"client_kwargs": client, **({"proxy": proxy} if proxy else {})}


def _s3_options(source: VolumeSource, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Without a credential: as anybody, and never as this machine."""
    client = {"endpoint_url": source.endpoint or keys.get("endpoint_url"), "region_name": keys.get("region")}
    options: dict[str, Any] = {
        "client_kwargs": {name: value for name, value in client.items() if value},
        "config_kwargs": {"connect_timeout": CONNECT_SECONDS, "read_timeout": SILENCE_SECONDS},
    }
    if not keys:
        return options | {"anon": True}
    names = {"key": "access_key_id", "secret": "secret_access_key", "token": "session_token"}
    if missing := [name for name in ("access_key_id", "secret_access_key") if not keys.get(name)]:
        raise SourceRefused(f"the credential {source.credential} has no {' and no '.join(missing)}")
    return options | {option: keys[name] for option, name in names.items() if keys.get(name)}


def _is_folder(path: str, info: Mapping[str, Any]) -> bool:
    """Also the empty object by which tools mark a folder."""
    return info.get("type") == "directory" or path.endswith("/")


def _strong_tag(entry: Entry) -> str:
    tag = entry.version.partition(" ")[0]
    return tag if tag.startswith('"') and tag.endswith('"') else ""


def _check_names(entries: list[Entry]) -> None:
    """Object stores have names that no file can have. Raises SourceRefused."""
    names = {entry.name for entry in entries}
    if len(names) < len(entries):
        raise SourceRefused("the source has a name twice")
    for name in names:
        parts = name.split("/")
        if not _is_path(name, parts):
            raise SourceRefused(f"the source has a name that no file can have: {name[:200]!r}")
        for number in range(1, len(parts)):
            if (above := "/".join(parts[:number])) in names:
                raise SourceRefused(f"the source has both {above[:200]!r} and {name[:200]!r}: a file and a folder")


def _is_path(name: str, parts: list[str]) -> bool:
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return False
    return not {"", ".", ".."} & set(parts) and "\0" not in name and max(sizes) <= NAME_MAX and sum(sizes) <= PATH_MAX


class _told:
    """Errors of file systems, whatever their library, as ours."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, SourceAway | SourceChanged | SourceRefused):
            return
        cause = error.__cause__
        if isinstance(error, FileNotFoundError) and isinstance(cause, aiohttp.ClientError | OSError | TimeoutError):
            error = cause  # how the HTTP file system tells of every trouble
        raise _ours(self._url, error) from error


def _ours(url: str, error: Exception) -> Exception:
    if isinstance(error, aiohttp.ClientResponseError):
        if error.status in (412, 416):
            return SourceChanged(f"{url} has changed")
        if error.status in (401, 403):
            return SourceRefused(f"{url} may not be read (HTTP {error.status})")
        if error.status in (404, 410):
            return SourceAway(f"there is nothing at {url}")
        return SourceAway(f"{url} answers HTTP {error.status}")
    if isinstance(error, FileNotFoundError):
        return SourceAway(f"there is nothing at {url}")
    if isinstance(error, PermissionError):
        return SourceRefused(f"{url} may not be read")
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return SourceAway(f"{url} does not answer")
    words = " ".join((str(error) or type(error).__name__).split())
    return SourceAway(f"{url} cannot be read: {words[:200]}")
