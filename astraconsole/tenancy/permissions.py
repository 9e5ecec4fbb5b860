"""Who may do what in a workspace: one table. Pure."""

from enum import StrEnum


class Role(StrEnum):
    VIEWER = "viewer"
    EDITOR = "editor"
    ADMIN = "admin"


ROLE_CHOICES = [(role.value, role.value.capitalize()) for role in Role]


class Action(StrEnum):
    READ = "read"
    WRITE = "write"  # submit, stop and delete runs
    MANAGE = "manage"  # members, machines


ALLOWED: dict[Role, frozenset[Action]] = {
    Role.VIEWER: frozenset({Action.READ}),
    Role.EDITOR: frozenset({Action.READ, Action.WRITE}),
    Role.ADMIN: frozenset({Action.READ, Action.WRITE, Action.MANAGE}),
}

REFUSALS: dict[Action, str] = {
    Action.READ: "you may not read this workspace",
    Action.WRITE: "viewers can read runs but not start, stop or delete them",
    Action.MANAGE: "only admins of the workspace may do this",
}


def allows(role: Role, action: Action) -> bool:
    return action in ALLOWED[role]
