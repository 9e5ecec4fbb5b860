"""The values that a run's specification is made of: text, sizes and counts with their ranges and rules. Pure."""

import base64
import binascii
import re
from typing import Annotated

from pydantic import AfterValidator, Field, PlainSerializer
from pydantic_core import PydanticCustomError

from machines import packed_code
from machines.data_names import NAME_RULE, is_data_name
from machines.images import image_reference
from runs.names import WORKERS_MAX, name_faults
from runs.units import TIME_LIMIT_MAX, TIME_LIMIT_MIN

ARGUMENT_MAX = 131_071  # bytes of one argument, or of one KEY=value: what Linux takes
GPUS_MAX = 100_000
MEMORY_MIN, MEMORY_MAX = 1024**2, 64 * 1024**4
PER_GPU_MEMORY_MAX = 4 * 1024**4
PRIORITY_MAX = 1_000_000

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?", re.ASCII)
_URL_PATH = re.compile(r"/[!\"$-~]*", re.ASCII)
_LABEL_KEY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_./-]*[A-Za-z0-9])?", re.ASCII)


def broken(rule: str) -> PydanticCustomError:
    """A broken rule, told in our own words."""
    return PydanticCustomError("rule", "{rule}", {"rule": rule})


def _argument(value: str) -> str:
    if len(value.encode()) > ARGUMENT_MAX:
        raise broken(f"must be at most {ARGUMENT_MAX} bytes")
    return value


def _image(value: str) -> str:
    try:
        image_reference(value)
    except ValueError:
        rule = "must be an image reference, such as python:3.11 or registry.example.com/team/train:1"
        raise broken(rule) from None
    return value


def _absolute_path(value: str) -> str:
    if not value.startswith("/") or ".." in value.split("/"):
        raise broken("must be an absolute path without ..")
    return value


def _probe_path(value: str) -> str:
    if _URL_PATH.fullmatch(value) is None:
        raise broken("must be the path of a URL: it begins with /, and holds no spaces and no #")
    return value


def _user(value: str) -> str:
    if _USER.fullmatch(value) is None:
        raise broken("must be a user, or user:group, by name or number")
    return value


def _env_name(value: str) -> str:
    if _ENV_NAME.fullmatch(value) is None:
        raise broken("must begin with a letter or _ and hold only letters, digits, _, - and .")
    return value


def _environment(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if len(name.encode()) + 1 + len(text.encode()) > ARGUMENT_MAX:
            raise broken(f"{name} is longer than {ARGUMENT_MAX} bytes")
    return value


def _label_key(value: str) -> str:
    if _LABEL_KEY.fullmatch(value) is None:
        raise broken("must be letters, digits, -, _, . and /, beginning and ending with a letter or digit")
    return value


def _data_name(value: str) -> str:
    if not is_data_name(value):
        raise broken(NAME_RULE)
    return value


def _group_name(value: str) -> str:
    if faults := name_faults(value):
        raise broken("; ".join(faults))
    return value


def _packed_code(value: str) -> str:
    try:
        packed_code.read(base64.b64decode(value, validate=True))
    except (binascii.Error, ValueError) as error:
        raise broken("must be base64") from error
    except packed_code.BadCode as error:
        raise broken(str(error)) from error
    return value


def _plain_number(value: float) -> float | int:
    """8 cores stay 8 in JSON, not 8.0."""
    return int(value) if value.is_integer() else value


Text = Annotated[str, Field(strict=True)]
Name = Annotated[Text, Field(min_length=1, max_length=253)]
Argument = Annotated[Text, AfterValidator(_argument)]
Command = Annotated[Text, Field(min_length=1, max_length=4096)]
Image = Annotated[Text, Field(min_length=1, max_length=512), AfterValidator(_image)]
AbsolutePath = Annotated[Text, Field(max_length=4096), AfterValidator(_absolute_path)]
User = Annotated[Text, Field(max_length=128), AfterValidator(_user)]
CredentialName = Annotated[Text, AfterValidator(_data_name)]
GroupName = Annotated[Text, AfterValidator(_group_name)]
Code = Annotated[Text, AfterValidator(_packed_code)]
Sha256 = Annotated[Text, Field(pattern=r"^[0-9a-f]{64}$")]
EnvName = Annotated[Text, Field(max_length=255), AfterValidator(_env_name)]
Environment = Annotated[dict[EnvName, Argument], Field(max_length=2000), AfterValidator(_environment)]
LabelKey = Annotated[Text, Field(max_length=253), AfterValidator(_label_key)]
Labels = Annotated[dict[LabelKey, Annotated[Text, Field(max_length=253)]], Field(max_length=64)]

Whole = Annotated[int, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False), PlainSerializer(_plain_number)]
Cores = Annotated[Number, Field(ge=0.001, le=10_000)]
Fraction = Annotated[Number, Field(gt=0, le=1)]
MemoryBytes = Annotated[Whole, Field(ge=MEMORY_MIN, le=MEMORY_MAX)]
PerGpuMemoryBytes = Annotated[Whole, Field(ge=MEMORY_MIN, le=PER_GPU_MEMORY_MAX)]
GpuCount = Annotated[Whole, Field(ge=1, le=GPUS_MAX)]
WorkerCount = Annotated[Whole, Field(ge=1, le=WORKERS_MAX)]
TimeLimit = Annotated[Whole, Field(ge=TIME_LIMIT_MIN, le=TIME_LIMIT_MAX)]
Priority = Annotated[Whole, Field(ge=-PRIORITY_MAX, le=PRIORITY_MAX)]
Seconds = Annotated[Whole, Field(ge=1, le=86400)]
Threshold = Annotated[Whole, Field(ge=1, le=1000)]
RetryExitCode = Annotated[Whole, Field(ge=1, le=255)]
ProbePath = Annotated[Text, Field(max_length=2000), AfterValidator(_probe_path)]
Port = Annotated[Whole, Field(ge=1, le=65535)]
