"""What differs between two runs. Pure."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runs.differences import Difference, Facts, differences, stem


def facts(spec: dict[str, object] | None = None, **told: object) -> Facts:
    given: dict[str, object] = {"images": {"": ["sha256:a"]}, "machines": ["gpu-07"], "gpus": ["H100"], **told}
    return Facts(spec or {}, **given)  # type: ignore[arg-type]


def test_fields_are_told_by_their_path_down_to_what_differs() -> None:
    before = {"task_template": {"image": "a:1", "env": {"LR": "1", "X": "y"}, "args": ["--a"]}, "machines": 2}
    after = {"task_template": {"image": "a:2", "env": {"LR": "2", "X": "y"}, "args": ["--b"]}, "priority": 5}
    assert differences(facts(before), facts(after)).spec == [
        Difference("task_template.image", "a:1", "a:2"),
        Difference("task_template.env.LR", "1", "2"),
        Difference("task_template.args", ["--a"], ["--b"]),
        Difference("machines", 2, None),
        Difference("priority", None, 5),
    ]


def test_parts_with_names_are_compared_by_name_whatever_their_order() -> None:
    one, two = {"name": "ps", "count": 1}, {"name": "worker", "count": 4}
    before, after = {"worker_groups": [one, two]}, {"worker_groups": [{**two, "count": 8}, one]}
    assert differences(facts(before), facts(after)).spec == [Difference("worker_groups[worker].count", 4, 8)]


def test_code_is_one_thing() -> None:
    old, new = {"code": {"sha256": "a", "size_bytes": 1}}, {"code": {"sha256": "b", "size_bytes": 2}}
    assert [one.what for one in differences(facts(old), facts(new)).spec] == ["code"]


def test_images_machines_and_gpus_are_told_beside_the_specification() -> None:
    after = facts(images={"": ["sha256:b"]}, machines=["gpu-08"], gpus=["A100"])
    found = differences(facts(), after)
    assert [one.what for one in found.all] == ["image digest", "machines", "GPU models"]
    assert found.images == [Difference("image digest", ["sha256:a"], ["sha256:b"])]


def test_a_digest_that_is_not_known_is_no_difference_and_says_so() -> None:
    found = differences(facts(), facts(images={"": []}))
    assert found.images == []
    assert found.unknown == ["The image digest is not known of this run: its machines use no images, or pulled none."]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
SPECS = st.dictionaries(st.sampled_from(["a", "b", "code"]), JSON)


@given(SPECS, SPECS)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_there_are_differences_exactly_where_specifications_differ(before: dict, after: dict) -> None:
    def given(spec: dict) -> dict:
        return {name: value for name, value in spec.items() if value is not None}

    found = differences(facts(given(before)), facts(given(after))).spec
    assert all(one.before != one.after for one in found)
    if given(before) == given(after):
        assert found == []
    assert differences(facts(before), facts(before)).all == []


@pytest.mark.parametrize(
    ("name", "series"),
    [
        ("nightly-41", "nightly"),
        ("llama-sft-again", "llama-sft"),
        ("llama-sft-again-again-2", "llama-sft"),
        ("resnet50", "resnet"),
        ("python-48213", "python"),
        ("train", "train"),
        ("2026", "2026"),
    ],
)
def test_a_series_of_names_is_known_by_what_is_before_its_numbers(name: str, series: str) -> None:
    assert stem(name) == series
