"""Sizes, durations and cores: what is read, what is refused, how each is spelled."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.units import format_cores, format_duration, format_memory, parse_cores, parse_duration, parse_memory

GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512Mi", 512 * 1024**2),
        ("64Gi", 64 * GIB),
        ("64G", 64 * GIB),
        ("64g", 64 * GIB),
        ("64GiB", 64 * GIB),
        ("64 GB", 64 * GIB),
        ("1.5Gi", 3 * GIB // 2),
        ("1T", 1024 * GIB),
        ("2K", 2048),
        ("68719476736", 64 * GIB),
        ("100b", 100),
        (" 1Gi ", GIB),
    ],
)
def test_a_size_is_binary_and_a_plain_number_is_bytes_in_the_console(text: str, size: int) -> None:
    assert parse_memory(text, "bytes") == size


def test_a_plain_number_is_mib_on_the_command_line() -> None:
    assert parse_memory("16384", "MiB") == 16 * GIB
    assert parse_memory("64G", "MiB") == 64 * GIB


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "0",
        "0Gi",
        "-1",
        "-1Gi",
        "64X",
        "12XB",
        "Gi",
        "1e9",
        "1,5G",
        "nan",
        "inf",
        "٣G",
        "1 2",
        "9" * 21,
        "9999P",
    ],
)
def test_a_bad_size_is_an_error_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|memory"):
        parse_memory(text, "bytes")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (64 * GIB, "64 GiB"),
        (3 * GIB // 2, "1.5 GiB"),
        (512 * 1024**2, "512 MiB"),
        (100, "100 bytes"),
        (GIB - 1, "1 GiB"),
        (0, "0 bytes"),
    ],
)
def test_a_size_is_shown_in_its_largest_unit(size: int, text: str) -> None:
    assert format_memory(size) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5400),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1d", 86400),
        ("90s", 90),
        ("1d2h3m4s", 93784),
        ("3600", 3600),
        ("1H 30M", 5400),
    ],
)
def test_a_duration_is_read_and_a_plain_number_is_seconds_in_the_console(text: str, seconds: int) -> None:
    assert parse_duration(text, "seconds") == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("90:00", 5400),
        ("00:30", 30),
        ("02:00:00", 7200),
        ("4:00", 240),
        ("48:00:00", 172800),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-12:00:00", 129600),
        ("7-00:00:00", 604800),
        ("0-12:00:00", 43200),
        ("12h", 43200),
    ],
)
def test_every_slurm_form_is_read_on_the_command_line(text: str, seconds: int) -> None:
    assert parse_duration(text, "minutes", slurm=True) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "0", "0s", "h", "1x", "-5", "1.5h", "30m1h", "1h1h", "1m2", "12:", "nan", "unlimited", "1d" + " " * 10_000],
)
def test_a_bad_duration_is_an_error_and_never_no_limit(text: str) -> None:
    for slurm in (False, True):
        with pytest.raises(ValueError, match="duration"):
            parse_duration(text, "minutes", slurm=slurm)


@pytest.mark.parametrize("text", ["1:75", "1:60:00", "1-24", "1-2:60", "1:2:3:4", "1-2-3", "2-"])
def test_a_clock_part_past_its_unit_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text, "minutes", slurm=True)


@pytest.mark.parametrize("text", ["02:00:00", "1-12", "4:00"])
def test_slurm_forms_are_refused_in_the_console(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text, "seconds")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (43200, "12h"),
        (5400, "1h30m"),
        (60, "1m"),
        (90, "90s"),
        (119, "119s"),
        (120, "2m"),
        (150, "2m30s"),
        (86400, "1d"),
        (129600, "1d12h"),
        (0, "0s"),
    ],
)
def test_a_duration_is_spelled_short(seconds: int, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(1, 400 * 86400))
def test_a_spelled_duration_reads_back(seconds: int) -> None:
    assert parse_duration(format_duration(seconds), "seconds") == seconds


@pytest.mark.parametrize(("text", "milli"), [("4", 4000), ("0.5", 500), (".5", 500), ("0.001", 1), ("1.250", 1250)])
def test_cores_are_read_to_a_thousandth(text: str, milli: int) -> None:
    assert parse_cores(text) == milli


@pytest.mark.parametrize("text", ["", "0", "0.0", "-1", "0.0001", "1e3", "x", "1.", "nan"])
def test_bad_cores_are_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="cores"):
        parse_cores(text)


@given(st.integers(1, 10**9))
def test_spelled_cores_read_back(milli: int) -> None:
    assert parse_cores(format_cores(milli)) == milli


@given(st.text())
def test_any_text_is_read_or_refused_with_a_sentence(text: str) -> None:
    for parse in (
        lambda: parse_memory(text, "MiB"),
        lambda: parse_duration(text, "seconds"),
        lambda: parse_duration(text, "minutes", slurm=True),
        lambda: parse_cores(text),
    ):
        assert value_or_sentence(parse)


def value_or_sentence(parse: Callable[[], int]) -> int | str:
    try:
        return parse()
    except ValueError as error:
        return str(error)
