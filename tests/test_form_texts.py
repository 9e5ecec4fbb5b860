"""What people type into the fields of New run: quoting, pairs and names, read and spelled."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.form_texts import parse_credentials, parse_environment, split_arguments

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
values = st.text(st.characters(exclude_characters="\0'", exclude_categories=["Cs"])).filter(lambda v: "\r" not in v)


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("/data/code/train.py --epochs 90", ["/data/code/train.py", "--epochs", "90"]),
        ("  a   b  ", ["a", "b"]),
        ("'two words' \"and two\"", ["two words", "and two"]),
        ("a''b '' \"\"", ["ab", "", ""]),
        (r"a\ b \'", ["a b", "'"]),
        ("--nodes=$WORLD_SIZE ${X} $(date) `id`", ["--nodes=$WORLD_SIZE", "${X}", "$(date)", "`id`"]),
        ("a;b a&&b a|b a>b", ["a;b", "a&&b", "a|b", "a>b"]),
        ("# no comment", ["#", "no", "comment"]),
        ("x=1,2 *.py ~", ["x=1,2", "*.py", "~"]),
        ("'line\nbreak'", ["line\nbreak"]),
        ("caffè 🚀", ["caffè", "🚀"]),
        ("", []),
    ],
)
def test_arguments_split_as_in_a_shell_and_expand_nothing(text: str, argv: list[str]) -> None:
    assert split_arguments(text) == argv


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
def test_any_arguments_survive_being_quoted(argv: list[str]) -> None:
    assert split_arguments(shlex.join(argv)) == argv


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("A=1", {"A": "1"}),
        ("A=1,B=2", {"A": "1", "B": "2"}),
        ("A=1, B=2 ,C=", {"A": "1", "B": "2", "C": ""}),
        ("A=1\nB=2\r\n\nC=3", {"A": "1", "B": "2", "C": "3"}),
        ("CUDA_VISIBLE_DEVICES=0,1", {"CUDA_VISIBLE_DEVICES": "0,1"}),
        ("A=x=y", {"A": "x=y"}),
        ("A=two words", {"A": "two words"}),
        ("A='x,B=y'", {"A": "x,B=y"}),
        ('A="two\nlines",B=1', {"A": "two\nlines", "B": "1"}),
        ("A='', B=\"\"", {"A": "", "B": ""}),
        ("A=$HOME", {"A": "$HOME"}),
        ("", {}),
        (" ,\n, ", {}),
    ],
)
def test_environment_is_pairs_by_line_or_comma(text: str, pairs: dict[str, str]) -> None:
    assert parse_environment(text) == pairs


@given(st.dictionaries(names, values, max_size=5), st.sampled_from([",", "\n", " , ", ",\n"]))
def test_any_environment_survives_being_quoted(pairs: dict[str, str], between: str) -> None:
    assert parse_environment(between.join(f"{name}='{value}'" for name, value in pairs.items())) == pairs


@pytest.mark.parametrize("text", [":", "a:", "a:b", "a:=B", "a:b=", ":b=C", "a, a", "a:k=A, a:k=B", "a:/x, a:/y"])
def test_what_names_no_credential_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not NAME|twice|two paths"):
        parse_credentials(text)
