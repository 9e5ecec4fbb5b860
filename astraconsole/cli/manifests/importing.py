"""Which of the known kinds a manifest is, and the runs that come of it. Pure."""

from dataclasses import dataclass
from typing import Any

import yaml

from astraconsole.cli.manifests.dstack import read_dstack
from astraconsole.cli.manifests.kubernetes import read_kubernetes
from astraconsole.cli.manifests.own import SHORT, read_short, read_specification
from astraconsole.cli.manifests.reading import Imported, LeftOut, Refused, read_documents
from astraconsole.cli.manifests.skypilot import FIELDS, read_skypilot

KNOWN = "Kubernetes Job and Pod, Kubeflow's training jobs, Volcano's Job, Ray, dstack, SkyPilot"


@dataclass(frozen=True)
class Result:
    """Runs in the order of their documents, and documents that are no runs."""

    runs: list[Imported]
    others: list[LeftOut]


def import_manifest(text: str, image: str = "") -> Result:
    """`image`: for manifests that name none. Raises Refused with what is wrong."""
    documents = [item for document in read_documents(text) for item in _items(document)]
    if any(_is_specification(document) for document in documents):
        return Result([read_specification(document) for document in read_documents(text, yaml.SafeLoader)], [])
    runs, others, kinds = [], [], set()
    for number, document in enumerate(documents, 1):
        where = f"document {number}" if len(documents) > 1 else "the file"
        kind = str(document.get("kind") or document.get("type") or "")
        try:
            imported = _read(document, alone=len(documents) == 1)
        except Refused as refusal:
            raise Refused(f"{where}: {refusal}" if len(documents) > 1 else str(refusal)) from refusal
        if imported is None:
            others.append(LeftOut(f"{where}{f' ({kind})' if kind else ''}", "is no run"))
            kinds.add(kind)
            continue
        _complete(imported, image)
        runs.append(imported)
    if not runs:
        named = ", ".join(sorted(kind for kind in kinds if kind)) or "this file"
        raise Refused(f"{named}: no run comes of it. Known are {KNOWN}")
    return Result(runs, others)


def _is_specification(document: dict[str, Any]) -> bool:
    spec = document.get("spec")
    return "kind" not in document and isinstance(spec, dict) and "task_template" in spec


def _items(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Of Kubernetes' List; any other document is its own only item."""
    items = document.get("items")
    if document.get("kind") != "List" or not isinstance(items, list):
        return [document]
    return [item for item in items if isinstance(item, dict)]


def _read(document: dict[str, Any], alone: bool) -> Imported | None:
    if "kind" in document:
        return read_kubernetes(document)
    if "type" in document:
        return read_dstack(document)
    if FIELDS & document.keys():
        return read_skypilot(document)
    if alone and (SHORT - {"name"}) & document.keys():
        return read_short(document)
    return None


def _complete(imported: Imported, image: str) -> None:
    """The given image where there is none, and what had to be made up by name."""
    spec = imported.run["spec"]
    template = spec["task_template"]
    if "image" not in template and image:
        template["image"] = image
        imported.left_out = [item for item in imported.left_out if item.path != "image"]
    imported.left_out = list(dict.fromkeys(imported.left_out))
