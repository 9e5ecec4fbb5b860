"""Every error that a caller may see: class → code → HTTP status. Codes are spelled here and nowhere else.

AstraError 500
├── BadRequest 400          MalformedBody, ValidationError, UnknownField, NameNotDnsSafe, TaskLogUnavailable
├── Unauthenticated 401     JoinTokenExpired, LoginExpired
├── Forbidden 403           PriorityNotAllowed, LoginDenied
├── NotFound 404
├── MethodNotAllowed 405
├── Conflict 409            JobAlreadyExists, JoinTokenUsed, MachineAlreadyExists, TaskNotPlaced, AlreadyEnded
├── TooLarge 413
├── TooManyRequests 429
├── Unavailable 503
└── TaskLogTimeout 504
"""

from collections.abc import Iterable
from typing import Self, TypedDict

NOT_A_FIELD = "is not a field of this API"


class Detail(TypedDict):
    """One broken rule. `field` is a dotted path (`spec.task_template.image`), `rule` a sentence."""

    field: str
    rule: str


class AstraError(Exception):
    code = "INTERNAL"
    status = 500

    def __init__(self, message: str, detail: list[Detail] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail or []

    def as_dict(self) -> dict[str, object]:
        """`{"code", "message", "detail"?}`: the one shape of an error, in the API and on the command line."""
        body: dict[str, object] = {"code": self.code, "message": self.message}
        if self.detail:
            body["detail"] = self.detail
        return body


class BadRequest(AstraError):
    code = "BAD_REQUEST"
    status = 400


class MalformedBody(BadRequest):
    code = "MALFORMED_BODY"


class ValidationError(BadRequest):
    code = "VALIDATION_ERROR"

    @classmethod
    def of(cls, broken: list[Detail]) -> Self:
        return cls("; ".join(f"{one['field']} {one['rule']}" for one in broken), broken)


class UnknownField(BadRequest):
    code = "UNKNOWN_FIELD"

    @classmethod
    def of(cls, names: Iterable[str], detail: list[Detail]) -> Self:
        """`detail`: of these fields, and of the rules that others break."""
        return cls(f"fields this API does not know: {', '.join(names)}", detail)


class NameNotDnsSafe(BadRequest):
    code = "NAME_NOT_DNS_SAFE"


class TaskLogUnavailable(BadRequest):
    code = "TASK_LOG_UNAVAILABLE"


class Unauthenticated(AstraError):
    code = "UNAUTHENTICATED"
    status = 401


class JoinTokenExpired(Unauthenticated):
    code = "JOIN_TOKEN_EXPIRED"


class LoginExpired(Unauthenticated):
    code = "LOGIN_EXPIRED"


class Forbidden(AstraError):
    code = "FORBIDDEN"
    status = 403


class PriorityNotAllowed(Forbidden):
    code = "PRIORITY_NOT_ALLOWED"


class LoginDenied(Forbidden):
    code = "LOGIN_DENIED"


class NotFound(AstraError):
    code = "NOT_FOUND"
    status = 404


class MethodNotAllowed(AstraError):
    code = "METHOD_NOT_ALLOWED"
    status = 405


class Conflict(AstraError):
    code = "CONFLICT"
    status = 409


class JobAlreadyExists(Conflict):
    code = "JOB_ALREADY_EXISTS"


class JoinTokenUsed(Conflict):
    code = "JOIN_TOKEN_USED"


class MachineAlreadyExists(Conflict):
    code = "MACHINE_ALREADY_EXISTS"


class TaskNotPlaced(Conflict):
    code = "TASK_NOT_PLACED"


class AlreadyEnded(Conflict):
    code = "ALREADY_ENDED"


class TooLarge(AstraError):
    code = "TOO_LARGE"
    status = 413


class TooManyRequests(AstraError):
    """`retry_after`: seconds until it may be tried again."""

    code = "TOO_MANY_REQUESTS"
    status = 429

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(AstraError):
    code = "UNAVAILABLE"
    status = 503


class TaskLogTimeout(AstraError):
    code = "TASK_LOG_TIMEOUT"
    status = 504
