"""References of images, as engines read them. Pure."""

import re

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*(?::[0-9]+)?"
_REFERENCE = re.compile(
    rf"(?:(?P<host>{_HOST})/)?(?P<path>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>[A-Za-z0-9+._-]+:[0-9a-fA-F]{32,}))?"
)
DEFAULT_REGISTRY = "docker.io"


def image_reference(image: str) -> str:
    """The full form of a reference: `busybox` is `docker.io/library/busybox:latest`.

    Raises ValueError, in the engine's words, for what is no reference: it must not reach a path of the engine's API.
    """
    found = _REFERENCE.fullmatch(image)
    if found is None:
        raise ValueError("invalid reference format")
    host, path = found["host"], found["path"]
    if host is not None and not (set(host) & set(".:") or host == "localhost" or host != host.lower()):
        host, path = None, f"{host}/{path}"  # `org/name`: a folder of the default registry
    if host in (None, "index.docker.io"):
        host = DEFAULT_REGISTRY
    if host == DEFAULT_REGISTRY and "/" not in path:
        path = f"library/{path}"
    tag = f":{found['tag']}" if found["tag"] else ""
    digest = f"@{found['digest']}" if found["digest"] else ""
    return f"{host}/{path}{tag or ('' if digest else ':latest')}{digest}"


def shown_reference(image: str) -> str:
    """The full form to show; what is no reference (an earlier console took it) as it is."""
    try:
        return image_reference(image)
    except ValueError:
        return image
