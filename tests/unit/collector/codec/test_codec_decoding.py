"""Stored JSON becomes a dataclass of the declared types, or one line with the key and the field."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec.canonical import canonical_json, decode_object, json_object
from collector.codec.errors import BadInput
from collector.model.stack import Stack
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast


@dataclass(frozen=True)
class Inner:
    name: str
    size: float = 1.0


@dataclass(frozen=True)
class Outer:
    number: int
    flag: bool
    inner: Inner
    many: tuple[Inner, ...]
    pair: tuple[str, float]
    by_name: Mapping[str, int]
    maybe: str | None = None


def outer(**changed: object) -> bytes:
    whole = asdict(Outer(1, True, Inner("a"), (Inner("b", 2.5),), ("k", 0.5), {"x": 3}))
    return canonical_json({**whole, **changed})


def read(data: bytes) -> Outer:
    return decode_object(Outer, data, what="an outer", key="some/key.json")


def test_declared_fields_are_decoded() -> None:
    assert read(outer()) == Outer(1, True, Inner("a"), (Inner("b", 2.5),), ("k", 0.5), {"x": 3})


def test_whole_number_is_decoded_as_a_float() -> None:
    assert read(outer(pair=["k", 2])).pair == ("k", 2.0)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"number": "1"}, ("number", "'1'")),
        ({"number": True}, ("number", "True")),
        ({"flag": 1}, ("flag", 1)),
        ({"inner": []}, ("inner", 0)),
        ({"inner": {}}, ("inner.name",)),
        ({"inner": {"name": "a", "more": 1}}, ("inner.'more'",)),
        ({"many": [{"name": None}]}, ("many[0].name", None)),
        ({"pair": ["k"]}, ("pair", 2, 1)),
        ({"pair": ["k", 10**400]}, ("pair[1]", f"1{'0' * 59}...")),
        ({"by_name": {"x": "y"}}, ("by_name.x", "'y'")),
        ({"maybe": 3}, ("maybe", 3)),
        ({"number": "\x1b]52;c;AAAA\x07"}, ("number", "'\\x1b]52;c;AAAA\\x07'")),
    ],
)
def test_field_of_another_type_is_refused_with_its_name(
    changed: dict[str, object], named: tuple[object, ...]
) -> None:
    with pytest.raises(BadInput, match=naming("outer", *named)) as error:
        read(outer(**changed))
    assert str(error.value).startswith("some/key.json: ")


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe", b"{", b"[" * 100_000, b"9" * 5000, b"1e999", b"NaN", b"null", b"[1]"],
)
def test_data_that_is_not_an_object_is_refused_in_one_line(data: bytes) -> None:
    for reader in (read, lambda d: json_object(d, what="an outer", key="some/key.json")):
        with pytest.raises(BadInput, match=naming("some/key.json:", "outer")) as error:
            reader(data)
        assert len(str(error.value)) < 200


def test_json_is_utf8() -> None:
    for data in (outer().decode().encode("utf-16"), outer().replace(b'"a"', b'"\xed\xa0\x80"')):
        with pytest.raises(BadInput, match=naming("some/key.json:", "outer")):
            read(data)


@pytest.mark.parametrize("half", [rb"\ud800", rb"x\uDFFFy", rb"\udc00\ud800"])
@pytest.mark.parametrize("place", [b'"k"', b'"a"', b'"x"'])
def test_unpaired_surrogate_is_refused(half: bytes, place: bytes) -> None:
    """It could be neither written again nor hashed."""
    with pytest.raises(BadInput, match=naming("some/key.json:", "outer", "surrogate")):
        read(outer().replace(place, b'"' + half + b'"'))


def test_paired_surrogates_are_decoded() -> None:
    assert read(outer().replace(b'"a"', rb'"\ud83d\ude00"')).inner.name == "\U0001f600"


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"NaN", b"Infinity"])
def test_numbers_are_finite(number: bytes) -> None:
    data = outer().replace(b"0.5", number)
    with pytest.raises(BadInput, match=naming("some/key.json:", "pair[1]")):
        read(data)


def test_class_with_its_own_json_codec_is_decoded_by_it() -> None:
    stack = Stack("D", "2.13.0", details=(("threads", "2"),))
    data = canonical_json(stack.as_json())
    assert decode_object(Stack, data, what="a stack", key="k") == stack
    with pytest.raises(BadInput, match=naming("k:", "stack", "device", "'../x'")):
        decode_object(Stack, b'{"device": "../x"}', what="a stack", key="k")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@pytest.mark.thorough
@given(
    name=st.sampled_from(["number", "flag", "inner", "many", "pair", "by_name", "maybe"]),
    value=_JSON,
)
def test_any_value_of_a_field_is_read_or_refused(name: str, value: object) -> None:
    whole = {**json.loads(outer()), name: value}
    try:
        found = read(json.dumps(whole).encode())
    except BadInput as error:
        assert "some/key.json" in str(error)
        return
    assert read(canonical_json(asdict(found))) == found
