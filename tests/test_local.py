"""What a local console says of the commands that it runs."""

import pytest

from astraconsole.local import error_line

SQL = """Traceback (most recent call last):
  File "cursor.py", line 117, in execute
    raise ex.with_traceback(None)
django.db.utils.ProgrammingError: column m.seen does not exist
LINE 1: SELECT m.seen FROM m
               ^
"""


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        (SQL, "django.db.utils.ProgrammingError: column m.seen does not exist"),
        ("CommandError: no such cluster\n", "CommandError: no such cluster"),
        ("killed\n", "killed"),
        ("", "no message"),
    ],
)
def test_a_command_that_fails_is_told_by_the_line_that_names_its_error(stderr: str, line: str) -> None:
    assert error_line(stderr) == line
