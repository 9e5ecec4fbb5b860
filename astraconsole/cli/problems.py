"""What can go wrong on the command line: one message for stderr, one exit code."""


class Problem(Exception):
    exit_code = 1


class NotConfigured(Problem):
    exit_code = 2


class Refused(Problem):
    """The console said no. `code` is the API's, `detail` its broken rules."""

    exit_code = 3

    def __init__(self, code: str, message: str, detail: list[dict[str, str]]) -> None:
        lines = [f"{code}: {message}", *(f"  {item['field']}: {item['rule']}" for item in detail)]
        super().__init__("\n".join(lines))
        self.code = code


class Unreachable(Problem):
    exit_code = 4
