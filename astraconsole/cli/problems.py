"""What can go wrong on the command line: one message for stderr, one exit code."""

from enum import IntEnum

from astraconsole.errors import Unauthenticated


class Exit(IntEnum):
    """Every exit code of `astra`; docs/cli.md tells them."""

    DONE = 0
    FAILED = 1  # a run or worker that was waited for failed; or astra cannot do this here
    USAGE = 2  # wrong usage or configuration; nothing was asked of the console
    REFUSED = 3
    UNREACHABLE = 4
    CANCELLED = 5  # a run or worker that was waited for was stopped
    GONE = 6  # it was deleted meanwhile
    DEFECT = 70
    INTERRUPTED = 130  # by Ctrl-C
    PIPE_CLOSED = 141  # nobody reads its output any more


class Problem(Exception):
    exit_code = Exit.FAILED


class NotConfigured(Problem):
    exit_code = Exit.USAGE


class Refused(Problem):
    """The console said no. `code` is the API's, `detail` its broken rules."""

    exit_code = Exit.REFUSED

    def __init__(self, code: str, message: str, detail: list[dict[str, str]]) -> None:
        lines = [f"{code}: {message}"]
        if message != " ".join(f"{item['field']} {item['rule']}" for item in detail):  # a single rule is the message
            lines += [f"  {item['field']}: {item['rule']}" for item in detail]
        if code == Unauthenticated.code:
            lines.append("sign in with `astra login`, or see ASTRA_TOKEN")
        super().__init__("\n".join(lines))
        self.code = code


class Unreachable(Problem):
    exit_code = Exit.UNREACHABLE
