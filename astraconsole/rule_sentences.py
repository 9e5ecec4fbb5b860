"""Broken rules in one wording, whatever found them: a body of the API, a parameter of an address. Pure."""

from collections.abc import Mapping
from typing import Any

SENTENCES = {
    "missing": "is required",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be one of {expected}",
    "string_too_short": "must not be empty",
    "string_too_long": "must be at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must not be empty",
    "rule": "{rule}",
}


def rule_sentence(kind: str, context: Mapping[str, Any], message: str) -> str:
    """What a value must be, of a pydantic error's type, `ctx` and `msg`; that message itself where we have no words."""
    if kind not in SENTENCES:
        return message
    plain = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in context.items()
    }
    return SENTENCES[kind].format(**plain)
