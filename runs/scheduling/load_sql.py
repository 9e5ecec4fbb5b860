"""The statements of `load`: all about a cluster as one JSON text, rows as arrays in the order of load's structs."""

from collections.abc import Iterable

from machines.models import MachineState
from runs.state_machine import PLACED, RUN_ENDED, RunState, WorkerState

ACTIVE = set(RunState) - RUN_ENDED


# Of a template: what may have to be mounted.
MOUNTED = ("secret_refs", "datavolume_refs", "model_refs")


def _listed(states: Iterable[str]) -> str:
    return ", ".join(f"'{state}'" for state in sorted(states))


# Runs that room is kept for, by the last plan: what is left of the queue where nobody else matters.
PROMISED = ("next", "gang", "preempting")

_MACHINES = f"""
    (SELECT coalesce(json_agg(json_build_array(
        m.id, m.name, m.cpu_milli, m.memory_bytes, m.state = '{MachineState.READY}', m.connection <> '',
        m.cordoned_at IS NOT NULL, m.draining, m.cordon_reason, m.runtime NOT IN ('process', 'simulated'),
        coalesce(v.data, '[]'), m.labels, coalesce(g.gpus, '[]')) ORDER BY m.id), '[]')
    FROM machines_machine m
    LEFT JOIN (
        SELECT d.machine_id, json_agg(n.id || '/' || v.kind || '/' || v.name) AS data
        FROM machines_dataonmachine d JOIN machines_volume v ON v.uid = d.uid AND v.kind = d.kind
        JOIN machines_namespace n ON n.workspace_id = v.workspace_id AND n.cluster_id = %(cluster)s
        WHERE d.state = 'Ready' GROUP BY d.machine_id
    ) v ON v.machine_id = m.id
    LEFT JOIN LATERAL (
        SELECT json_agg(json_build_array(index, model, memory_bytes, healthy) ORDER BY index) AS gpus
        FROM machines_gpu g WHERE g.machine_id = m.id
    ) g ON true
    WHERE m.cluster_id = %(cluster)s AND m.state NOT IN ('{MachineState.JOINING}', '{MachineState.REMOVED}'))"""


def _of_worker(field: str) -> str:
    """A field of the template that a worker is started from: its group's, where that has one, else the run's."""
    ours = f"r.spec #> '{{task_template,{field}}}'"
    return f"""CASE WHEN w."group" <> '' THEN (
            SELECT coalesce(element #> '{{task_template,{field}}}', {ours})
            FROM jsonb_array_elements(r.spec -> 'worker_groups') element WHERE element ->> 'name' = w."group"
        ) ELSE {ours} END"""


# Most runs have nothing mounted, and no engine: that is found out at a quarter of the price.
_MOUNTED = f"""CASE WHEN coalesce(w."group", '') = '' AND NOT r.spec -> 'task_template' ?| ARRAY[{_listed(MOUNTED)}]
            AND NOT r.spec ? 'engine'
        THEN NULL ELSE jsonb_build_array({", ".join(map(_of_worker, MOUNTED))}, r.spec -> 'engine') END"""


# Room is held until the machine has said that the process is gone, whatever has become of the run.
_HOLDS = f"""
    (SELECT coalesce(json_agg(json_build_array(
        r.id, r.namespace_id, a.machine_id, a.cpu_milli, a.memory_bytes, a.gpu_indexes, r.priority,
        extract(epoch FROM coalesce(a.running_at, a.placed_at)),
        {_of_worker("time_limit_seconds")},
        extract(epoch FROM coalesce(a.superseded_at, w.stop_requested_at)))), '[]')
    FROM runs_attempt a
    JOIN machines_machine m ON m.id = a.machine_id
    JOIN runs_worker w ON w.id = a.worker_id
    JOIN runs_run r ON r.id = w.run_id
    WHERE a.released_at IS NULL AND m.cluster_id = %(cluster)s)"""

_NAMESPACES = """
    (SELECT coalesce(json_agg(json_build_array(
        id, weight, quota_gpus, quota_cpu_milli, quota_memory_bytes, quota_runs, pools)), '[]')
    FROM machines_namespace WHERE cluster_id = %(cluster)s)"""

# Workers are looked up run by run, by their index: joined in any other way, the cost depends on PostgreSQL's statistics
# being up to date, and a queue of thousands that was submitted just now takes seconds.
_WAITING = f"""
    (SELECT coalesce(json_agg(json_build_array(
        r.id, r.namespace_id, r.priority, extract(epoch FROM r.queued_at), r.pending_code, r.pending_numbers,
        r.spec -> 'machines', r.spec #> '{{array,parallelism}}', r.gang,
        {_of_worker("time_limit_seconds")},
        r.spec -> 'node_selection',
        {_of_worker("requested_resources")},
        {_MOUNTED},
        r.spec ?| array['machines', 'array', 'worker_groups']
            OR coalesce(r.spec -> 'node_selection' ? 'count', false),
        coalesce(w.gpus, 0), coalesce(w.cpu_milli, 0), coalesce(w.memory_bytes, 0), w.node_fraction,
        coalesce(w.ids, '{{}}'), coalesce(w.workers, 0), coalesce(w.placed, 0), coalesce(w.started, false),
        coalesce(w.first_rank, 0), r.claim)), '[]')
    FROM machines_namespace n
    JOIN runs_run r ON r.namespace_id = n.id AND r.deleted_at IS NULL AND r.state IN ({_listed(ACTIVE)})
    LEFT JOIN LATERAL (
        SELECT w."group", w.gpus, w.cpu_milli, w.memory_bytes, w.node_fraction, min(w.rank) AS first_rank,
            (array_agg(w.id ORDER BY w.rank) FILTER (WHERE w.state = '{WorkerState.PENDING}'))
                [1:CASE WHEN r.gang THEN count(*) ELSE %(workers)s END::int] AS ids,
            count(*) AS workers,
            count(*) FILTER (WHERE w.state IN ({_listed(PLACED)})) AS placed,
            max(w.attempt_number) > 0 AS started
        FROM runs_worker w WHERE w.run_id = r.id
        GROUP BY w."group", w.gpus, w.cpu_milli, w.memory_bytes, w.node_fraction
    ) w ON true
    WHERE n.cluster_id = %(cluster)s
        AND (%(about)s::bigint IS NULL OR r.id = %(about)s OR r.priority >= %(from_priority)s::int
            OR r.pending_code IN ({_listed(PROMISED)})
            OR r.pending_code = '' AND r.priority > (
                SELECT min(h.priority) FROM machines_namespace hn JOIN runs_run h ON h.namespace_id = hn.id
                WHERE hn.cluster_id = %(cluster)s AND h.deleted_at IS NULL AND h.state IN ({_listed(ACTIVE)})
                    AND h.pending_code IN ({_listed(PROMISED)})))
        AND (r.state = 'Pending' OR EXISTS (
            SELECT FROM runs_worker p WHERE p.run_id = r.id AND p.state = '{WorkerState.PENDING}')))"""

SNAPSHOT = f"""
SELECT json_build_object(
    'machines', {_MACHINES},
    'holds', {_HOLDS},
    'namespaces', {_NAMESPACES},
    'waiting', {_WAITING})::text"""

# How many runs wait for room, by namespace, beside a run of this priority and submission time. What can never run, or
# waits for its own workspace's quota, holds nobody up.
AHEAD = f"""
SELECT r.namespace_id, count(*) FILTER (WHERE r.priority > %(priority)s),
    count(*) FILTER (WHERE r.priority = %(priority)s),
    count(*) FILTER (WHERE r.priority = %(priority)s AND (r.queued_at, r.id) < (%(queued_at)s, %(run)s))
FROM runs_run r JOIN machines_namespace n ON n.id = r.namespace_id
WHERE n.cluster_id = %(cluster)s AND r.deleted_at IS NULL AND r.state = '{RunState.PENDING}' AND r.id <> %(run)s
    AND r.pending_code IN ('next', 'preempting', 'queued', 'gang', '')
GROUP BY r.namespace_id"""

INVENTORY = f"SELECT json_build_object('machines', {_MACHINES})::text"
