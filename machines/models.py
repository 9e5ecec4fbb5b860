"""Clusters, the workspaces' share of them, machines and their GPUs. Columns and constraints only."""

import uuid

from django.contrib.postgres.fields import ArrayField
from django.db import models

from astraconsole.sql import TransactionId
from astraconsole.tenancy.models import Organisation, User, Workspace


class Cluster(models.Model):
    organisation = models.ForeignKey(Organisation, on_delete=models.PROTECT, related_name="clusters")
    slug = models.SlugField(max_length=40)
    uid = models.UUIDField(default=uuid.uuid4, unique=True)  # the identity that agents hold the console to
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["organisation", "slug"], name="cluster_slug_unique")]

    def __str__(self) -> str:
        return self.slug


class Namespace(models.Model):
    """A workspace on a cluster. A null quota is no limit; no pools means every pool."""

    workspace = models.ForeignKey(Workspace, on_delete=models.PROTECT, related_name="namespaces")
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="namespaces")
    quota_gpus = models.PositiveIntegerField(null=True, blank=True)
    quota_cpu_milli = models.PositiveBigIntegerField(null=True, blank=True)
    quota_memory_bytes = models.PositiveBigIntegerField(null=True, blank=True)
    quota_runs = models.PositiveIntegerField(null=True, blank=True)
    weight = models.FloatField(default=1)
    max_priority = models.IntegerField(default=0)
    pools = ArrayField(models.CharField(max_length=63), default=list, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["workspace", "cluster"], name="namespace_unique"),
            models.CheckConstraint(condition=models.Q(weight__gt=0), name="namespace_weight_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.workspace} on {self.cluster}"


class MachineState(models.TextChoices):
    JOINING = "Joining"  # its token exists, it has not yet said hello
    READY = "Ready"
    LOST = "Lost"
    STOPPING = "Stopping"  # the console that owns it is being stopped; takes no work
    REMOVED = "Removed"


class Machine(models.Model):
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="machines")
    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    name = models.CharField(max_length=63)
    state = models.CharField(max_length=10, choices=MachineState.choices, default=MachineState.JOINING)
    state_reason = models.CharField(max_length=300, blank=True)
    cordoned_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    cordoned_at = models.DateTimeField(null=True, blank=True)  # not null: takes no new work
    cordon_reason = models.CharField(max_length=300, blank=True)
    draining = models.BooleanField(default=False, db_default=False)  # cordoned, and what it runs is given back
    trusted_since = models.DateTimeField(null=True, blank=True)  # failures before are held against it no more
    token_digest = models.CharField(max_length=64, unique=True)

    labels = models.JSONField(default=dict, blank=True)  # {"pool": "train"}
    cpu_milli = models.PositiveBigIntegerField(default=0)
    memory_bytes = models.PositiveBigIntegerField(default=0)
    runtime = models.CharField(max_length=20, blank=True)  # docker | process | simulated
    hostname = models.CharField(max_length=253, blank=True)
    address = models.CharField(max_length=253, blank=True, db_default="")  # where the other machines reach it
    agent_version = models.CharField(max_length=40, blank=True)
    boot_id = models.CharField(max_length=64, blank=True)
    place = models.CharField(max_length=64, blank=True, db_default="")  # of its agent's state directory
    stop_grace_seconds = models.FloatField(default=30)

    revision = models.PositiveBigIntegerField(default=0)  # bumped in the transaction that changes its assignments
    applied_revision = models.PositiveBigIntegerField(default=0)
    connection = models.CharField(max_length=100, blank=True)  # the newest connection's id; older ones are ignored
    connected_at = models.DateTimeField(null=True, blank=True)
    last_seen_at = models.DateTimeField(null=True, blank=True)  # the console's clock
    clock_skew_seconds = models.FloatField(null=True, blank=True)  # machine's clock minus the console's
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "name"], condition=~models.Q(state="Removed"), name="machine_name_unique"
            ),
            models.CheckConstraint(
                condition=models.Q(draining=False) | models.Q(cordoned_at__isnull=False), name="draining_is_cordoned"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class MachineEvent(models.Model):
    """One entry of a machine's history: what became of it, why, when, and who or what did it."""

    machine = models.ForeignKey(Machine, on_delete=models.CASCADE, related_name="events", db_index=False)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+", db_index=False)  # the machine's
    tx = models.BigIntegerField(db_default=TransactionId())
    state = models.CharField(max_length=10)  # a MachineState, Cordoned or Draining
    reason = models.CharField(max_length=300, blank=True)
    actor = models.CharField(max_length=150)  # a user name, "console", "machine <name>"
    at = models.DateTimeField()

    class Meta:
        indexes = [
            models.Index(fields=["machine", "id"], name="machine_event"),
            models.Index(fields=["cluster", "tx", "id"], name="machine_event_of_cluster"),
        ]


class Gpu(models.Model):
    machine = models.ForeignKey(Machine, on_delete=models.CASCADE, related_name="gpus")
    index = models.PositiveSmallIntegerField()
    uuid = models.CharField(max_length=64)
    model = models.CharField(max_length=100)
    memory_bytes = models.PositiveBigIntegerField()
    healthy = models.BooleanField(default=True)
    health_reason = models.CharField(max_length=200, blank=True)
    simulated = models.BooleanField(default=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["machine", "index"], name="gpu_index_unique")]


class Assignment(models.Model):
    """What a machine is to do about one attempt: run it, archive it, or forget it. No row: stop it, keep its log.

    The rows of a machine are the full set that it is sent. `runs` writes them through `machines.dispatch`; the order is
    kept encoded (`machines.orders.Order`), so that sending a set costs one query and no decoding.
    """

    attempt = models.UUIDField(primary_key=True)
    machine = models.ForeignKey(Machine, on_delete=models.CASCADE, related_name="assignments")
    order = models.BinaryField(null=True)  # null: archive or forget it
    waits = models.BooleanField(default=False, db_default=False)  # at the order's barrier, which is closed
    archives = models.BooleanField(default=False, db_default=False)  # without an order: keep the end of its log


class Provider(models.TextChoices):
    """Where machines fetch a credential's value."""

    FILE = "file", "File"
    ENVIRONMENT = "environment", "Environment"
    COMMAND = "command", "Command"
    VAULT = "vault", "HashiCorp Vault"


class Credential(models.Model):
    """A name for something that machines can fetch. Its value is known to them alone."""

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="credentials")
    uid = models.UUIDField(default=uuid.uuid4, unique=True)  # a new one whenever it says something else
    name = models.CharField(max_length=63)
    provider = models.CharField(max_length=12, choices=Provider.choices)
    reference = models.CharField(max_length=500)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField()
    changed_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["workspace", "name"], name="credential_name_unique")]

    def __str__(self) -> str:
        return self.name


class VolumeForm(models.TextChoices):
    """What a drive or a model is."""

    FOLDER = "folder", "Folder of the machine"
    NFS = "nfs", "Folder of a file server (NFS)"
    COPY = "copy", "Copy of a remote source"


class Volume(models.Model):
    """A drive or a model: data that machines mount into containers. It never changes: another one has another uid."""

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="volumes")
    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    kind = models.CharField(max_length=10)  # machines.orders.DataKind: drive | model
    name = models.CharField(max_length=63)
    form = models.CharField(max_length=10, choices=VolumeForm.choices)
    source = models.CharField(max_length=1000)
    read_only = models.BooleanField(default=False)
    version = models.CharField(max_length=63, blank=True)  # of a model: a person's own word
    credential = models.CharField(max_length=63, blank=True)  # its name: for reading the source
    checksum = models.CharField(max_length=80, blank=True)  # sha256:…
    endpoint = models.CharField(max_length=300, blank=True)  # of an S3 that is not Amazon's
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField()

    class Meta:
        verbose_name, verbose_name_plural = "drive or model", "drives and models"
        constraints = [models.UniqueConstraint(fields=["workspace", "kind", "name"], name="volume_name_unique")]

    def __str__(self) -> str:
        return self.name


class DataOnMachine(models.Model):
    """How far a machine is with a credential, a drive or a model: as it said last. Written whole, per machine, by
    `machines.data_states`; the row may outlive what it is about, so it is read from there."""

    machine = models.ForeignKey(Machine, on_delete=models.CASCADE, related_name="data", db_index=False)
    kind = models.CharField(max_length=10)  # machines.orders.DataKind
    uid = models.UUIDField()
    state = models.CharField(max_length=20)
    message = models.CharField(max_length=500, blank=True)
    done_bytes = models.PositiveBigIntegerField(default=0)
    total_bytes = models.PositiveBigIntegerField(default=0)
    changed_at = models.DateTimeField()  # of the state

    class Meta:
        constraints = [models.UniqueConstraint(fields=["machine", "kind", "uid"], name="data_on_machine_unique")]
        indexes = [models.Index(fields=["uid"], name="data_on_machine_uid")]


class JoinToken(models.Model):
    """Lets one machine join a cluster, once. Only its SHA-256 is kept."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="join_tokens")
    digest = models.CharField(max_length=64, unique=True)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    machine = models.ForeignKey(Machine, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")


class SetAsideReport(models.Model):
    """A report of a machine that could not be applied, not even on its own: acknowledged, kept for staff to look at."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+")
    machine = models.ForeignKey(Machine, null=True, on_delete=models.CASCADE, related_name="+")
    attempt = models.UUIDField(null=True)  # null: a hello
    seq = models.PositiveIntegerField(null=True)
    payload = models.BinaryField()  # as the inbox held it: machines.protocol.Report, or the hello's attempts
    error = models.TextField()
    received_at = models.DateTimeField()
    set_aside_at = models.DateTimeField()


class Liveness(models.Model):
    """When a process of the console was last alive, and since when without a pause: a lease expires only if a daphne
    and the lease check both were, for its whole length."""

    process = models.CharField(max_length=300, unique=True)  # "daphne:<host>:<pid>", "leases"
    kind = models.CharField(max_length=10)  # machines.leases.DAPHNE | CHECK
    since = models.DateTimeField()
    seen_at = models.DateTimeField()


class SampleLayout(models.Model):
    """Which series the columns of a table of samples are: `machines.metrics.names.key_of` of each, in order."""

    keys = ArrayField(models.IntegerField(), unique=True)


class SampleBlock(models.Model):
    """Samples of one attempt as a table of float64, row by row: time (Unix seconds), then its layout's series.

    Under 0 as a machine sent them; under 60 and 600, and the place of a metric more, rolled up to so many seconds, with
    three columns a series (`metrics.align`) and each metric in rows of its own (`metrics.store.part_of`).
    """

    pk = models.CompositePrimaryKey("attempt", "resolution", "start")
    attempt = models.UUIDField()  # of one worker; an attempt's uid is never used again
    start = models.FloatField()  # of its first row; of a rolled one, of the time it covers
    layout = models.ForeignKey(SampleLayout, on_delete=models.PROTECT, related_name="+", db_index=False)
    resolution = models.PositiveSmallIntegerField()
    table = models.BinaryField()

    class Meta:
        indexes = [models.Index(fields=["resolution", "start"], name="sample_block_age")]


class SampleRollUp(models.Model):
    """How far (Unix seconds) the samples are rolled up to a resolution; later ones are read from the finer one."""

    resolution = models.PositiveSmallIntegerField(primary_key=True)
    until = models.FloatField()


class GpuUse(models.Model):
    """What the GPUs of a machine did when it was last heard: [{index, utilization, memory_bytes, processes}, …]."""

    machine = models.OneToOneField(Machine, on_delete=models.CASCADE, primary_key=True, related_name="gpu_use")
    at = models.DateTimeField()
    gpus = models.JSONField()
