"""The last good run of the same kind, and what differs from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astraconsole.errors import NotFound
from astraconsole.sql import fetch
from astraconsole.tenancy.queries import Access
from runs.differences import Differences, Facts, differences, stem
from runs.models import Run
from runs.queries import runs_for
from runs.spec import load_spec

LOOKED_AT = 5000  # runs of the workspace before this one
LOOKED_INTO = 500  # of those that completed, whose specifications are compared

WHY = {
    "named": "you chose it",
    "schedule": "the last run of the same schedule that completed",
    "name": "the last run of the same name that completed",
    "stem": "the last run of this series of names that completed",
    "program": "the last run with the same image and command that completed",
}


@dataclass(frozen=True)
class Comparison:
    """`good` is None where there is none to compare with. `how`: a key of WHY."""

    good: Run | None
    how: str
    found: Differences | None

    @property
    def why(self) -> str:
        return WHY.get(self.how, "")


def compare(access: Access, run: Run, against: str = "") -> Comparison:
    """With the last good run: of the same schedule, the same name, the same series of names, or the same program, in
    this order; deleted ones too, while their records are kept. `against`: with this one, whatever became of it.

    At most seven queries. Raises NotFound."""
    good_id, how = (_chosen(access, run, against), "named") if against else _last_good(run)
    if good_id is None:
        return Comparison(None, "", None)
    good = runs_for(access).get(pk=good_id)
    return Comparison(good, how, differences(_facts(good), _facts(run)))


def _chosen(access: Access, run: Run, name: str) -> int:
    cluster = run.namespace.cluster
    found = runs_for(access).filter(namespace__cluster=cluster, name=name.replace("\0", ""), deleted_at=None).first()
    if found is None:
        raise NotFound(f"there is no run {name} on {cluster.slug}")
    return found.pk


def _last_good(run: Run) -> tuple[int | None, str]:
    rows = fetch(
        """
        SELECT r.id, r.name, EXISTS (
            SELECT FROM runs_firing f JOIN runs_firing own ON own.schedule_id = f.schedule_id
            WHERE f.run_id = r.id AND own.run_id = %(run)s)
        FROM (SELECT id, name, state FROM runs_run WHERE workspace_id = %(workspace)s AND created_at < %(before)s
              ORDER BY created_at DESC, id DESC LIMIT %(looked)s) r
        WHERE r.state = 'Completed'
        """,
        {"run": run.pk, "workspace": run.workspace_id, "before": run.created_at, "looked": LOOKED_AT},
    )
    series = stem(run.name)
    ways = {
        "schedule": [pk for pk, _, same in rows if same],
        "name": [pk for pk, name, _ in rows if name == run.name],
        "stem": [pk for pk, name, _ in rows if stem(name) == series],
    }
    for how, found in ways.items():
        if found:
            return found[0], how
    return _same_program(run, [pk for pk, _, _ in rows[:LOOKED_INTO]]), "program"


def _same_program(run: Run, completed: Sequence[int]) -> int | None:
    """As of runs from one template, whose names have nothing in common."""
    if not completed:
        return None
    rows = fetch(
        """
        SELECT r.id FROM runs_run r, runs_run own WHERE own.id = %s AND r.id = ANY(%s)
        AND r.spec #> '{task_template,image}' IS NOT DISTINCT FROM own.spec #> '{task_template,image}'
        AND r.spec #> '{task_template,command}' IS NOT DISTINCT FROM own.spec #> '{task_template,command}'
        AND r.spec #> '{task_template,args,0}' IS NOT DISTINCT FROM own.spec #> '{task_template,args,0}'
        ORDER BY r.created_at DESC, r.id DESC LIMIT 1
        """,
        [run.pk, list(completed)],
    )
    return rows[0][0] if rows else None


def _facts(run: Run) -> Facts:
    """Two queries."""
    rows = fetch(
        """
        SELECT w."group", a.image_digest, m.name, a.machine_id, a.gpu_indexes
        FROM runs_worker w JOIN runs_attempt a ON a.worker_id = w.id AND a.number = w.attempt_number
        JOIN machines_machine m ON m.id = a.machine_id WHERE w.run_id = %s
        """,
        [run.pk],
    )
    images: dict[str, set[str]] = {}
    for group, digest, *_ in rows:
        images.setdefault(group, set()).update([digest] if digest else [])
    return Facts(
        load_spec(run.spec).model_dump(mode="json", exclude_defaults=True),  # a default that is given is none
        {group: sorted(digests) for group, digests in sorted(images.items())},
        sorted({row[2] for row in rows}),
        _models({row[3] for row in rows if row[4]}),
    )


def _models(machine_ids: set[int]) -> list[str]:
    rows = fetch("SELECT DISTINCT model FROM machines_gpu WHERE machine_id = ANY(%s) ORDER BY 1", [list(machine_ids)])
    return [model for (model,) in rows]


def document(comparison: Comparison) -> Mapping[str, Any]:
    """As the API tells it."""
    good, found = comparison.good, comparison.found
    if good is None or found is None:
        return {"good": None, "how": None, "differences": [], "unknown": []}
    return {
        "good": {"name": good.name, "uid": str(good.uid), "cluster": good.namespace.cluster.slug, "state": good.state},
        "how": comparison.why,
        "differences": [{"what": one.what, "before": one.before, "after": one.after} for one in found.all],
        "unknown": found.unknown,
    }
