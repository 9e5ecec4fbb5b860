"""What credentials, drives and models may be called: one rule for those who define them and for runs. Pure."""

import re

NAME_RULE = "must be 1 to 63 letters, digits, `.`, `_` and `-`, and begin and end with a letter or digit"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)


def is_data_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None
