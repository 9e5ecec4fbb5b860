"""Runs, their workers, each placement of a worker (attempt), and the record of every move. Columns only."""

import uuid
from urllib.parse import urlsplit

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from astraconsole.sql import TransactionId
from astraconsole.tenancy.models import User, Workspace
from machines.models import Machine, Namespace
from runs.cron import EXPRESSION_MAX
from runs.names import DNS_LABEL_MAX, RUN_NAME_MAX
from runs.saved import DESCRIPTION_MAX, SAVED_NAME_MAX, Outcome, Overlap
from runs.scheduling import explain
from runs.state_machine import RUN_ENDED, RunState, WorkerState
from runs.webhook_rules import Purpose
from runs.webhook_sending import URL_LENGTH


def choices(states: type[RunState] | type[WorkerState]) -> list[tuple[str, str]]:
    return [(state.value, state.value) for state in states]


ACTIVE = Q(deleted_at=None, state__in=[state.value for state in RunState if state not in RUN_ENDED])


class Code(models.Model):
    """Code that came with a run, once for all runs of a workspace that have the same; see `runs.services.codes`."""

    workspace = models.ForeignKey(Workspace, on_delete=models.PROTECT, related_name="+", db_index=False)
    sha256 = models.CharField(max_length=64)  # of `packed`
    packed = models.BinaryField()  # a tar.gz that was looked at when it came in
    size_bytes = models.PositiveIntegerField()
    kept_at = models.DateTimeField()  # when it came in, the last time

    class Meta:
        constraints = [models.UniqueConstraint(fields=["workspace", "sha256"], name="code_unique")]


class Run(models.Model):
    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    namespace = models.ForeignKey(Namespace, on_delete=models.PROTECT, related_name="runs")
    workspace = models.ForeignKey(Workspace, on_delete=models.PROTECT, related_name="+")  # the namespace's, for lists
    name = models.CharField(max_length=RUN_NAME_MAX)
    labels = models.JSONField(default=dict)
    spec = models.JSONField()  # what was submitted, normalised; see runs.spec
    code = models.ForeignKey(Code, null=True, blank=True, on_delete=models.PROTECT, related_name="runs")
    priority = models.IntegerField(default=0)
    gpus = models.PositiveIntegerField(default=0)  # asked in all
    # Of the spec, beside it: what every change of a worker asks for.
    gang = models.BooleanField(default=False)
    on_failure = models.CharField(max_length=12, default="RestartTask")
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField()

    state = models.CharField(max_length=12, choices=choices(RunState), default=RunState.PENDING)
    reason = models.TextField(default="Run created")  # the API's reason; the console's sentence is derived on reading
    changed_at = models.DateTimeField()  # of its newest transition
    queued_at = models.DateTimeField()  # what orders equals; set at submit, kept over requeues
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)
    restarts = models.PositiveIntegerField(default=0)  # of its workers, in all
    preemptions = models.PositiveIntegerField(default=0)
    # Of a run whose workers restart together (`on_failure` RestartJob), for which `restarts` counts whole restarts.
    failures_in_row = models.PositiveIntegerField(default=0, db_default=0)
    restarting = models.JSONField(null=True, blank=True)  # runs.services.rows.WholeRestart, while it goes on
    # Why it waits: a code of runs.scheduling.explain and its numbers; the sentence is made on reading.
    pending_code = models.CharField(max_length=40, blank=True)
    pending_numbers = models.JSONField(default=dict)
    # Room that others give up for it: runs.scheduling.types.Claim. Null: none.
    claim = models.JSONField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["namespace", "name"], condition=Q(deleted_at=None), name="run_name_unique"),
        ]
        indexes = [
            models.Index(fields=["workspace", "-created_at", "-id"], name="run_list"),
            models.Index(fields=["workspace", "-created_at", "-id"], condition=ACTIVE, name="run_active"),
            models.Index(fields=["namespace", "state"], condition=ACTIVE, name="run_waiting"),
            models.Index(fields=["workspace", "name"], name="run_named"),
            models.Index(fields=["ended_at"], condition=Q(deleted_at=None, ended_at__isnull=False), name="run_ended"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def status_reason(self) -> str:
        """The API's reason: while it waits, the scheduler's refusal as a sentence."""
        if self.state == RunState.PENDING and self.pending_code:
            return explain.sentence(self.pending_code, self.pending_numbers)
        return self.reason


class Stem(models.Model):
    """A name that a run has to itself in its workspace and cluster until it is deleted: its own, and what its workers'
    names begin with (`<run>-<group>`). Claimed at submit, so that workers planned later find their names free."""

    namespace = models.ForeignKey(Namespace, on_delete=models.PROTECT, related_name="+", db_index=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="stems")
    stem = models.CharField(max_length=115)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["namespace", "stem"], name="stem_unique")]

    def __str__(self) -> str:
        return self.stem


class Worker(models.Model):
    """One process tree of a run. `stem` (`<run>` or `<run>-<group>`) and `rank` make its name."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="workers")
    # The run's two, here too: a worker's name is unique among those of its namespace that are not deleted.
    namespace = models.ForeignKey(Namespace, on_delete=models.PROTECT, related_name="+")
    deleted = models.BooleanField(default=False)
    name = models.CharField(max_length=DNS_LABEL_MAX)
    group = models.CharField(max_length=RUN_NAME_MAX, blank=True)
    rank = models.PositiveIntegerField()  # within the run, over all groups: RANK; array index for arrays
    cpu_milli = models.PositiveBigIntegerField(default=0)
    memory_bytes = models.PositiveBigIntegerField(default=0)
    node_fraction = models.FloatField(null=True, blank=True)
    gpus = models.PositiveIntegerField(default=0)

    state = models.CharField(max_length=12, choices=choices(WorkerState), default=WorkerState.PENDING)
    reason = models.TextField(default="Run created")
    changed_at = models.DateTimeField()
    attempt_number = models.PositiveIntegerField(default=0)  # of the newest attempt; 0 before the first
    restarts = models.PositiveIntegerField(default=0)
    failures_in_row = models.PositiveIntegerField(default=0)  # what the retry budget counts
    restart_at = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)
    stop_reason = models.TextField(blank=True)
    after_stop = models.CharField(  # what its stop was asked for: Cancelled, Pending or Restarting
        max_length=12, choices=choices(WorkerState), default=WorkerState.CANCELLED, db_default=WorkerState.CANCELLED
    )
    exit_code = models.IntegerField(null=True, blank=True)
    last_failure = models.JSONField(null=True, blank=True)  # {reason, failed_at, exit_code, log_tail}
    newest: "Attempt | None"  # no column: set by `runs.queries` on the workers that it gives

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["namespace", "name"], condition=Q(deleted=False), name="worker_name_unique"
            ),
            models.UniqueConstraint(fields=["run", "rank"], name="worker_rank_unique"),
        ]
        indexes = [
            models.Index(fields=["restart_at"], condition=Q(state="Restarting"), name="worker_restarting"),
            models.Index(fields=["run"], condition=Q(state="Pending"), name="worker_pending"),
        ]

    def __str__(self) -> str:
        return self.name


class Attempt(models.Model):
    """One placement of a worker on a machine. Its uid is the fencing token of every report.

    It holds its room on the machine from placement until `released_at`: when the machine has said that the process is
    really gone. `superseded_at` says that its reports no longer move the worker (lost machine, requeue, deletion).
    What the machine is told to do about it is a `machines.Assignment`.
    """

    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    worker = models.ForeignKey(Worker, on_delete=models.CASCADE, related_name="attempts")
    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="attempts", db_index=False)
    number = models.PositiveIntegerField()
    cpu_milli = models.PositiveBigIntegerField()
    memory_bytes = models.PositiveBigIntegerField()
    gpu_indexes = ArrayField(models.PositiveSmallIntegerField(), default=list)
    placed_at = models.DateTimeField()
    running_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    superseded_at = models.DateTimeField(null=True, blank=True)
    released_at = models.DateTimeField(null=True, blank=True)
    report_seq = models.PositiveIntegerField(default=0)  # newest report applied
    exit_code = models.IntegerField(null=True, blank=True)
    end_reason = models.CharField(max_length=40, blank=True)  # machines.protocol.EndReason
    image_digest = models.CharField(max_length=200, blank=True)
    engine_image = models.CharField(max_length=500, blank=True, db_default="")  # of the engine beside it, @DIGEST
    blame = models.CharField(max_length=8, blank=True, db_default="")  # runs.quick_failures.Blame of its end
    process_oom_kills = models.PositiveIntegerField(default=0)  # children killed for memory while the worker went on

    class Meta:
        constraints = [models.UniqueConstraint(fields=["worker", "number"], name="attempt_number_unique")]
        indexes = [
            models.Index(fields=["machine"], condition=Q(released_at=None), name="attempt_live"),
            models.Index(fields=["machine", "placed_at"], name="attempt_machine"),
            models.Index(fields=["worker", "-number"], name="attempt_newest"),
        ]


class Transition(models.Model):
    """One move of a run (worker null) or of a worker: what it became, why, when, and who or what did it."""

    # No index for each foreign key: the two below serve every read, and these rows are most of what is written. Nor a
    # constraint on the run: its check at each removed run would read the whole table.
    run = models.ForeignKey(
        Run, on_delete=models.CASCADE, related_name="transitions", db_index=False, db_constraint=False
    )
    worker = models.ForeignKey(Worker, null=True, on_delete=models.CASCADE, related_name="transitions", db_index=False)
    workspace = models.ForeignKey(  # the run's, for the workspace's events
        Workspace, on_delete=models.CASCADE, related_name="+", db_index=False, db_constraint=False
    )
    tx = models.BigIntegerField(db_default=TransactionId())
    attempt_number = models.PositiveIntegerField(null=True)
    state = models.CharField(max_length=12)
    reason = models.TextField()
    actor = models.CharField(max_length=150)  # a user name, "scheduler", "machine <name>", "console"
    at = models.DateTimeField()

    class Meta:
        indexes = [
            models.Index(fields=["run", "id"], condition=Q(worker=None), name="transition_run"),
            models.Index(fields=["worker", "id"], name="transition_worker"),
            models.Index(fields=["workspace", "tx", "id"], name="transition_event"),
            models.Index(fields=["workspace", "tx", "id"], condition=Q(worker=None), name="transition_run_event"),
            models.Index(
                fields=["workspace", "actor", "tx", "id"],
                condition=~Q(actor__startswith="machine ") & ~Q(actor="scheduler"),
                name="transition_person",
            ),
        ]


class Receipt(models.Model):
    """What an ended run cost, as `runs.receipt.document`: measured once, while its samples are still there."""

    run = models.OneToOneField(Run, primary_key=True, on_delete=models.CASCADE, related_name="receipt")
    document = models.JSONField()
    written_at = models.DateTimeField()


class UsageMonth(models.Model):
    """GPU time of runs of which no record is left: what was summed up before they were removed."""

    workspace = models.ForeignKey(Workspace, on_delete=models.PROTECT, related_name="+", db_index=False)
    username = models.CharField(max_length=150, blank=True)  # empty: of somebody who has left
    month = models.DateField()  # its first day, UTC
    gpu_seconds = models.FloatField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["workspace", "month", "username"], name="usage_month_unique"),
        ]


class Template(models.Model):
    """A specification that a workspace keeps under a name. Not validated until a run is made of it."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    workspace = models.ForeignKey(Workspace, on_delete=models.PROTECT, related_name="+", db_index=False)
    name = models.CharField(max_length=SAVED_NAME_MAX)
    description = models.CharField(max_length=DESCRIPTION_MAX, blank=True)
    spec = models.TextField()  # JSON as given: jsonb would sort its fields
    saved_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    saved_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["workspace", "name"], name="template_unique")]

    def __str__(self) -> str:
        return self.name


class Schedule(models.Model):
    """A run that is started on a timetable, as `<name>-<n>`, by the person who saved it last."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    namespace = models.ForeignKey(Namespace, on_delete=models.PROTECT, related_name="+", db_index=False)
    workspace = models.ForeignKey(Workspace, on_delete=models.PROTECT, related_name="+", db_index=False)
    name = models.CharField(max_length=RUN_NAME_MAX)
    cron = models.CharField(max_length=EXPRESSION_MAX)
    zone = models.CharField(max_length=64)
    overlap = models.CharField(max_length=8, choices=[(policy.value, policy.value) for policy in Overlap])
    spec = models.TextField()  # as Template
    enabled = models.BooleanField(default=True)
    next_at = models.DateTimeField(null=True, blank=True)  # null: disabled, or never again
    started = models.PositiveIntegerField(default=0)  # <n> of its newest run
    error = models.TextField(blank=True)  # of its newest firing
    saved_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    saved_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["workspace", "name"], name="schedule_unique")]
        indexes = [models.Index(fields=["next_at"], condition=Q(enabled=True), name="schedule_due")]

    def __str__(self) -> str:
        return self.name


class Firing(models.Model):
    """One time at which a schedule was due, or was started by hand: what came of it. Its uniqueness is what makes
    each time count once, whoever notices it."""

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="firings", db_index=False)
    due_at = models.DateTimeField()
    fired_at = models.DateTimeField()
    outcome = models.CharField(max_length=8, choices=[(outcome.value, outcome.value) for outcome in Outcome])
    message = models.TextField(blank=True)
    run = models.ForeignKey(Run, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    actor = models.CharField(max_length=150)  # a user name, or "schedule"

    class Meta:
        constraints = [models.UniqueConstraint(fields=["schedule", "due_at"], name="firing_once")]


class Webhook(models.Model):
    """Where a workspace's events are sent, in order. It stands at a position among them: nothing is copied for it."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+")
    url = models.CharField(max_length=URL_LENGTH)
    kinds = ArrayField(models.CharField(max_length=12), default=list)  # of events; empty: all
    salt = models.CharField(max_length=43)  # with the console's own key it makes the secret, which is kept nowhere
    enabled = models.BooleanField(default=True)
    position = models.CharField(max_length=60)  # runs.event_positions: sent up to there
    news_from = models.BigIntegerField()  # what later transactions than this one wrote, or it, is not sent yet
    next_at = models.DateTimeField(null=True, blank=True)  # not before: it has failed
    failing_since = models.DateTimeField(null=True, blank=True)
    disabled_reason = models.CharField(max_length=300, blank=True)  # by the console
    # Whoever sends for it has written its mark here, and may until then.
    claim = models.UUIDField(null=True, blank=True)
    claimed_until = models.DateTimeField(null=True, blank=True)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return str(urlsplit(self.url).hostname)


class Delivery(models.Model):
    """Some of a workspace's events, in one piece, on their way to a webhook or there. Tried again as the same piece."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="deliveries", db_index=False)
    purpose = models.CharField(max_length=8, choices=[(purpose.value, purpose.value) for purpose in Purpose])
    after = models.CharField(max_length=60, blank=True)  # the events after this position …
    until = models.CharField(max_length=60, blank=True)  # … and up to this one
    events = models.PositiveIntegerField(default=0)
    state = models.CharField(max_length=10, default="Waiting")  # Waiting, Delivered, Failed
    attempts = models.PositiveIntegerField(default=0)
    status = models.PositiveIntegerField(null=True, blank=True)  # of the last try, as what follows
    duration_ms = models.PositiveIntegerField(null=True, blank=True)
    answer = models.TextField(blank=True)
    error = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField()
    tried_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["webhook", "-id"], name="delivery_newest"),
            models.Index(fields=["webhook", "id"], condition=Q(state="Waiting"), name="delivery_waiting"),
            models.Index(fields=["created_at"], name="delivery_age"),
        ]
