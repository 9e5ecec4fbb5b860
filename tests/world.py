"""A small world for tests of who may do what: workspaces side by side, people in every role, one run."""

from dataclasses import dataclass

from django.utils import timezone

from astraconsole.tenancy.models import Membership, User, Workspace
from astraconsole.tenancy.permissions import Role
from astraconsole.tenancy.queries import Access
from astraconsole.tenancy.services import create_token
from machines.credentials import save_credential
from machines.models import Cluster, Machine
from machines.orders import DataKind
from machines.volumes import create_volume
from runs.models import Delivery, Run, Template, Webhook
from runs.saved import read_schedule
from runs.services.schedules import save_schedule
from runs.services.webhooks import create_webhook
from tests import builders

WEBHOOK_ID = "00000000-0000-4000-8000-000000000002"
DELIVERY_ID = "00000000-0000-4000-8000-000000000003"
TEMPLATE_ID = "00000000-0000-4000-8000-000000000001"


@dataclass
class World:
    """acme/vision and acme/nlp share the cluster gpu-east; vision has `lab` to itself; umbra/vision is another's.
    vision has the credential hf-token, a drive and a model imagenet."""

    members: dict[Role, User]  # of acme/vision, weakest first
    stranger: User  # the admin of umbra/vision, which has a gpu-east of its own
    neighbour: User  # the admin of acme/nlp
    staff: User  # a member of nothing
    secrets: dict[str, str]  # user name → API token
    member_id: int  # the viewer's membership
    token_id: int  # the admin's token
    workspace: Workspace  # acme/vision
    cluster: Cluster  # gpu-east
    machine: Machine  # gpu-07, in lab
    run: Run  # resnet50, on gpu-east: one worker with one GPU

    def access(self, role: Role = Role.EDITOR) -> Access:
        return Access(self.members[role], self.workspace, role)

    def bearer(self, who: User | Role) -> dict[str, str]:
        """The header that signs a person, or the member in a role, in to the API."""
        user = self.members[who] if isinstance(who, Role) else who
        return {"HTTP_AUTHORIZATION": f"Bearer {self.secrets[user.username]}"}


def make_world() -> World:
    acme = builders.organisation("acme")
    vision, nlp = builders.workspace(acme), builders.workspace(acme, "nlp")
    cluster = builders.cluster(vision, nlp)
    lab = builders.cluster(vision, slug="lab")
    elsewhere = builders.workspace(builders.organisation("umbra"))
    builders.cluster(elsewhere)

    accesses = {role: builders.access(vision, role, role.value) for role in Role}
    stranger = builders.access(elsewhere, Role.ADMIN, "stranger").user
    neighbour = builders.access(nlp, Role.ADMIN, "neighbour").user
    staff = User.objects.create_user("staff", is_staff=True, is_superuser=True)
    people = [*(access.user for access in accesses.values()), stranger, neighbour, staff]
    save_credential(accesses[Role.ADMIN], "hf-token", "file", "hf", timezone.now())
    for kind in (DataKind.DRIVE, DataKind.MODEL):
        given = {"name": "imagenet", "kind": "copy", "source": "s3://data/imagenet"}
        create_volume(accesses[Role.ADMIN], kind, given, timezone.now())
    tokens = {user.username: create_token(user, "test", timezone.now()) for user in people}
    Template.objects.create(
        uid=TEMPLATE_ID, workspace=vision, name="llama-70b finetune", spec='{"machines": 2}', saved_at=builders.T0
    )
    hook, _ = create_webhook(accesses[Role.ADMIN], "https://hooks.example.com/astra", [], builders.T0)
    Webhook.objects.filter(pk=hook.pk).update(uid=WEBHOOK_ID)
    sent = {"purpose": "events", "after": hook.position, "until": hook.position, "created_at": builders.T0}
    Delivery.objects.create(uid=DELIVERY_ID, webhook=hook, **sent)
    timetable = {"name": "nightly", "cluster": "gpu-east", "cron": "0 3 * * *", "spec": builders.body()["spec"]}
    save_schedule(accesses[Role.EDITOR], read_schedule(timetable), builders.T0)
    return World(
        members={role: access.user for role, access in accesses.items()},
        stranger=stranger,
        neighbour=neighbour,
        staff=staff,
        secrets={name: secret for name, (_, secret) in tokens.items()},
        member_id=Membership.objects.get(user=accesses[Role.VIEWER].user).pk,
        token_id=tokens[Role.ADMIN][0].pk,
        workspace=vision,
        cluster=cluster,
        machine=builders.machine(lab, "gpu-07", cpu=128, memory=1024 * builders.GIB, gpus=8),
        run=builders.submit(accesses[Role.EDITOR], cluster, "resnet50", gpus=1, cpu=8, memory=64 * builders.GIB),
    )
