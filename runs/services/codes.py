"""The code that comes with runs: kept once for a workspace, found again by its digest, and let go after its last run.

A run's specification holds only the digest and the size, so that nothing that reads runs reads their code. Machines
fetch it for the attempts that are placed on them.
"""

import base64
import hashlib
from datetime import datetime, timedelta
from uuid import UUID

from astraconsole.errors import NotFound, ValidationError
from astraconsole.sql import execute, fetch
from astraconsole.tenancy.queries import Access
from runs.spec import KeptCode, RunSpec

# A run that is being submitted has its code kept before its own row is there.
UNUSED_KEPT = timedelta(hours=1)


def keep(access: Access, spec: RunSpec, now: datetime) -> tuple[RunSpec, int | None]:
    """The specification with its code replaced by what is known of it, and the row of the code. Raises ValidationError
    for a digest that the workspace has no code of."""
    if spec.code is None:
        return spec, None
    if isinstance(spec.code, KeptCode):
        found = fetch(
            "UPDATE runs_code SET kept_at = %s WHERE workspace_id = %s AND sha256 = %s RETURNING id, size_bytes",
            [now, access.workspace.pk, spec.code.sha256],
        )
        if not found:
            rule = "is of no code that a run of this workspace has: send the code itself"
            raise ValidationError(f"spec.code.sha256 {rule}", [{"field": "spec.code.sha256", "rule": rule}])
        code_id, size = found[0]
        return _with(spec, spec.code.sha256, size), code_id
    packed = base64.b64decode(spec.code)
    digest = hashlib.sha256(packed).hexdigest()
    [(code_id,)] = fetch(
        """INSERT INTO runs_code (workspace_id, sha256, packed, size_bytes, kept_at) VALUES (%s, %s, %s, %s, %s)
        ON CONFLICT (workspace_id, sha256) DO UPDATE SET kept_at = EXCLUDED.kept_at RETURNING id""",
        [access.workspace.pk, digest, packed, len(packed), now],
    )
    return _with(spec, digest, len(packed)), code_id


def _with(spec: RunSpec, sha256: str, size_bytes: int) -> RunSpec:
    return spec.model_copy(update={"code": KeptCode(sha256=sha256, size_bytes=size_bytes)})


def packed_for(machine_id: int, attempt: UUID) -> bytes:
    """The code of an attempt that is placed on the machine, and not over. Raises NotFound for any other."""
    found = fetch(
        """SELECT c.packed FROM runs_attempt a JOIN runs_worker w ON w.id = a.worker_id
        JOIN runs_run r ON r.id = w.run_id JOIN runs_code c ON c.id = r.code_id
        WHERE a.uid = %s AND a.machine_id = %s AND a.released_at IS NULL""",
        [attempt, machine_id],
    )
    if not found:
        raise NotFound("there is no code of such an attempt on this machine")
    return bytes(found[0][0])


def drop_unused(now: datetime) -> None:
    """Code whose runs have all been deleted. Their records stay, without it."""
    unused = """kept_at < %(before)s AND NOT EXISTS (
        SELECT FROM runs_run r WHERE r.code_id = c.id AND r.deleted_at IS NULL)"""
    parameters = {"before": now - UNUSED_KEPT}
    execute(f"UPDATE runs_run SET code_id = NULL FROM runs_code c WHERE code_id = c.id AND {unused}", parameters)
    execute(
        f"DELETE FROM runs_code c WHERE {unused} AND NOT EXISTS (SELECT FROM runs_run r WHERE r.code_id = c.id)",
        parameters,
    )
