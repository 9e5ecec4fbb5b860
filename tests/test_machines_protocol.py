"""Every message of the agent protocol, through the real encoder and back."""

import math
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from machines import protocol


def any_of(type_: object) -> st.SearchStrategy[object]:
    """A strategy for whatever a field's declaration allows, so that a new message or field is tested as it comes."""
    return _strategy(msgspec.inspect.type_info(type_))


def _strategy(info: msgspec.inspect.Type) -> st.SearchStrategy[object]:
    match info:
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.IntType():
            low = -(2**63) if info.ge is None else info.ge
            return st.integers(low, 2**63 - 1 if info.le is None else info.le)
        case msgspec.inspect.FloatType():
            return st.floats(info.ge, info.le, allow_nan=False)
        case msgspec.inspect.StrType() if info.pattern and info.max_length is None:
            return st.from_regex(info.pattern)
        case msgspec.inspect.StrType():
            return st.text(max_size=info.max_length).filter(lambda text: re.search(info.pattern or "", text))
        case msgspec.inspect.BytesType():
            return st.binary()
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.EnumType():
            return st.sampled_from(info.cls)
        case msgspec.inspect.ListType():
            return st.lists(_strategy(info.item_type), max_size=4)
        case msgspec.inspect.TupleType():
            return st.tuples(*map(_strategy, info.item_types))
        case msgspec.inspect.DictType():
            return st.dictionaries(_strategy(info.key_type), _strategy(info.value_type), max_size=3)
        case msgspec.inspect.UnionType():
            return st.one_of(*map(_strategy, info.types))
        case msgspec.inspect.StructType():
            return st.fixed_dictionaries({field.name: _strategy(field.type) for field in info.fields}).flatmap(
                lambda fields: _made(info.cls, fields)
            )
    raise TypeError(info)


def _made(cls: type, fields: dict[str, object]) -> st.SearchStrategy[object]:
    try:
        return st.just(cls(**fields))
    except ValueError:  # a rule over several fields
        return st.nothing()


@given(any_of(protocol.FromAgent))
def test_what_an_agent_says_arrives_as_it_was_said(message):
    assert protocol.decode_from_agent(protocol.encode(message)) == message


@given(any_of(protocol.ToAgent))
def test_what_the_console_says_arrives_as_it_was_said(message):
    assert protocol.decode_to_agent(protocol.encode(message)) == message


@given(any_of(protocol.Report))
def test_a_report_comes_out_of_the_inbox_as_it_went_in(report):
    assert protocol.decode_report(protocol.encode(report)) == report


@given(any_of(protocol.Answer))
def test_an_answer_passes_through_the_console_unchanged(answer):
    assert protocol.decode_answer(protocol.encode(answer)) == answer


@given(st.binary())
def test_bytes_that_are_no_message_are_refused_and_nothing_else(data):
    for decode in (protocol.decode_from_agent, protocol.decode_to_agent, protocol.decode_report):
        try:
            decode(data)
        except msgspec.DecodeError:
            continue
    protocol.hello_version(data)


def _changed(message: object, **fields: object) -> bytes:
    return msgspec.msgpack.encode({**msgspec.to_builtins(message), **fields})


HEARTBEAT = protocol.Heartbeat(3, 1.5)
REPORT = protocol.Report("a" * 32, 1, [protocol.PhaseAge(protocol.Phase.RUNNING, 0.1)])
GPU = {"index": 0, "uuid": "GPU-1", "model": "H100", "memory_bytes": 1}
HELLO = protocol.Hello(1, "1.0", "boot", 1.5, protocol.Inventory("host", "docker", 1, 1), 30)


@pytest.mark.parametrize(
    "frame",
    [
        _changed(HEARTBEAT, wall_clock=math.nan),
        _changed(HEARTBEAT, wall_clock=math.inf),
        _changed(HEARTBEAT, applied_revision=-1),
        _changed(HEARTBEAT, type="nonsense"),
        _changed(protocol.Reports([REPORT]), items=[{**msgspec.to_builtins(REPORT), "attempt": "A" * 32}]),
        _changed(protocol.Reports([REPORT]), items=[{**msgspec.to_builtins(REPORT), "attempt": "a" * 33}]),
        _changed(protocol.Reports([REPORT]), items=[{**msgspec.to_builtins(REPORT), "seq": 2**31}]),
        _changed(protocol.Reports([REPORT]), items=[{**msgspec.to_builtins(REPORT), "exit_code": 2**31}]),
        _changed(HELLO, boot_id="a\0b"),
        _changed(HELLO, inventory={**msgspec.to_builtins(HELLO.inventory), "gpus": [GPU, GPU]}),
    ],
)
def test_what_no_column_can_hold_is_refused_at_the_door(frame):
    with pytest.raises(msgspec.ValidationError):
        protocol.decode_from_agent(frame)


def test_the_version_of_a_hello_of_the_future_can_be_read():
    assert protocol.hello_version(msgspec.msgpack.encode({"type": "hello", "version": 9, "shape": ["new"]})) == 9


def test_only_a_hello_has_a_version():
    assert protocol.hello_version(protocol.encode(HEARTBEAT)) is None


def test_a_field_that_an_older_side_does_not_know_is_passed_over():
    assert protocol.decode_from_agent(_changed(HEARTBEAT, something_new=1)) == HEARTBEAT
