"""One record, one spelling: what a journal line may be, and that nothing else is ever taken for one."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import Refused
from controller.journal import GENESIS, Damage, encode, parse, spell

_FIELDS: dict[str, Any] = {
    "seq": 0,
    "at": "2026-08-01T09:30:00.000Z",
    "boot": "5b2e6c1e-8f0b-4c57-9a55-0d8f6a1c2e77",
    "kind": "run-created",
    "unit": "u.1",
    "attempt": "a_1",
    "data": {"b": [1, "x", None, True], "a": {"z": -5}},
    "prev": GENESIS,
}


def sealed(text: str) -> bytes:
    """A line with a right hash, whatever else is wrong with it: what another program might write."""
    body = text.encode("utf-8", "surrogatepass")
    return body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def line_with(old: str, new: str) -> bytes:
    line = encode(**_FIELDS)[0].decode("ascii")
    assert line.count(old) == 1
    return sealed(line[: line.index(',"sha256"')].replace(old, new))


def damage_of(data: bytes) -> Damage:
    with pytest.raises(Damage) as caught:
        parse(data)
    return caught.value


def test_the_helper_of_these_tests_seals_as_the_product_does() -> None:
    assert line_with('"seq":0', '"seq":0') == encode(**_FIELDS)[0]


names = st.binary(max_size=20).map(os.fsdecode)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20) | names,
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=5) | names, children, max_size=4)
    ),
    max_leaves=12,
)
ids = st.none() | st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True)


@given(
    st.lists(st.tuples(ids, ids, st.dictionaries(names, values, max_size=4)), min_size=1, max_size=4),
    st.binary(),
)
def test_what_was_written_is_what_is_read_also_names_that_are_not_utf8(
    steps: list[tuple[str | None, str | None, dict[str, Any]]], tail: bytes
) -> None:
    data, prev, written = b"", GENESIS, []
    for seq, (unit, attempt, value) in enumerate(steps):
        line, record = encode(**{**_FIELDS, "seq": seq, "unit": unit, "attempt": attempt, "data": value, "prev": prev})
        assert record.data == value
        assert spell(record) + b"\n" == line
        data, prev = data + line, record.sha256
        written.append(record)
    torn = tail.replace(b"\n", b"")
    found = parse(data + torn)
    assert (list(found.records), found.size, found.torn) == (written, len(data), torn)


@given(st.binary(max_size=60))
def test_the_bytes_of_any_file_name_come_back_from_the_journal(name: bytes) -> None:
    line, _ = encode(**{**_FIELDS, "data": {"path": os.fsdecode(name)}})
    assert os.fsencode(parse(line).records[0].data["path"]) == name


def test_every_byte_of_a_line_is_printable_ascii_also_for_delete_and_line_separators() -> None:
    line, record = encode(**{**_FIELDS, "data": {"x": "\x7f\x00\n\r\u2028\u00e9\U0001f600\udcff"}})
    assert set(line[:-1]) <= set(range(0x20, 0x7F))
    assert record.data == {"x": "\x7f\x00\n\r\u2028\u00e9\U0001f600\udcff"}


def test_a_record_that_a_caller_changes_after_writing_stays_as_it_was_written() -> None:
    data = {"paths": ["a"]}
    _, record = encode(**{**_FIELDS, "data": data})
    data["paths"].append("b")
    assert record.data == {"paths": ["a"]}


def test_tuples_are_recorded_as_the_arrays_that_a_reader_gets() -> None:
    _, record = encode(**{**_FIELDS, "data": {"paths": ("a", ("b",))}})
    assert record.data == {"paths": ["a", ["b"]]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data": {"x": 1.5}}, "no integer"),
        ({"data": {"x": 1.0}}, "no integer"),
        ({"data": {"x": float("nan")}}, "no integer"),
        ({"data": {"x": float("inf")}}, "no integer"),
        ({"data": {"x": 2**64}}, "64 bits"),
        ({"data": {"x": -(2**63) - 1}}, "64 bits"),
        ({"data": {"x": 10**5000}}, ""),
        ({"data": {"x": b"bytes"}}, "bytes"),
        ({"data": {"x": "\ud800"}}, "surrogate"),
        ({"data": {"x": "\ud83d\udc80"}}, "surrogate"),
        ({"data": {"\udc7f": 1}}, "surrogate"),
        ({"data": {1: "a", "1": "b"}}, ""),
        ({"data": []}, "data"),
        ({"unit": "a/b"}, "unit"),
        ({"unit": ".."}, "unit"),
        ({"unit": ""}, "unit"),
        ({"unit": "u" * 129}, "unit"),
        ({"attempt": "a b"}, "attempt"),
        ({"attempt": "null"}, None),
        ({"kind": "Run"}, "kind"),
        ({"kind": "x" * 65}, "kind"),
        ({"at": "2026-02-30T00:00:00.000Z"}, "date"),
        ({"at": "2026-08-01T24:00:00.000Z"}, "at"),
        ({"at": "2026-08-01T09:30:00Z"}, "at"),
        ({"boot": ""}, "boot"),
        ({"seq": -1}, "seq"),
        ({"seq": True}, "seq"),
        ({"prev": "0" * 63}, "prev"),
    ],
)
def test_what_no_reader_would_take_is_refused_before_it_is_written(change: dict[str, Any], says: str | None) -> None:
    if says is None:
        assert encode(**{**_FIELDS, **change})[1].attempt == "null"
        return
    with pytest.raises(Refused, match="cannot be written to the journal") as caught:
        encode(**{**_FIELDS, **change})
    assert says in caught.value.message
    assert caught.value.expected
    assert caught.value.found
    assert caught.value.remedy


def test_nesting_that_would_exhaust_a_reader_is_refused() -> None:
    def nested(levels: int) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for _ in range(levels - 1):
            value = {"x": value}
        return value

    encode(**{**_FIELDS, "data": nested(64)})
    for levels in (65, 200, 100_000):
        with pytest.raises(Refused):
            encode(**{**_FIELDS, "data": nested(levels)})
    for levels in (65, 200, 100_000):
        text = '{"x":' * (levels - 1) + "{}" + "}" * (levels - 1)
        assert "nested" in damage_of(line_with('{"a":{"z":-5},"b":[1,"x",null,true]}', text)).what
    wide = {"x": [{"y": [i]} for i in range(500)], "brackets": "[{" * 500}
    assert parse(encode(**{**_FIELDS, "data": wide})[0]).records[0].data == wide


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('"v":1', '"v":2', "version"),
        ('"v":1', '"v":1.0', "field v"),
        ('"v":1', '"v":"1"', "field v"),
        ('"v":1', '"w":1', "field v"),
        ('"seq":0', '"seq":1', "missing, doubled or out of order"),
        ('"seq":0', '"seq":00', "field seq"),
        ('"seq":0', '"seq":-0', "field seq"),
        ('"seq":0', '"seq":0.0', "field seq"),
        ('"seq":0', '"seq":true', "field seq"),
        ('"seq":0', '"seq":"0"', "field seq"),
        ('"seq":0', '"seq": 0', "field seq"),
        ('"seq":0', '"seq":0,"seq":0', "field at"),
        ("2026-08-01T", "2026-13-01T", "date"),
        ("2026-08-01T", "2026-08-01 ", "field at"),
        ("30:00.000Z", "30:00Z", "field at"),
        ("30:00.000Z", "30:60.000Z", "date"),
        ('"kind":"run-created"', '"kind":null', "field kind"),
        ('"kind":"run-created","unit":"u.1"', '"unit":"u.1","kind":"run-created"', "field kind"),
        ('"unit":"u.1"', '"unit":"u/1"', "field unit"),
        ('"unit":"u.1"', '"unit":""', "field unit"),
        ('"attempt":"a_1"', '"attempt":[]', "field attempt"),
        ('"attempt":"a_1",', '"attempt":"a_1","more":1,', "field data"),
        ('"data":{', '"data":[{', "field data"),
        ('"z":-5', '"z":-5.0', "no integer"),
        ('"z":-5', '"z":5e3', "no integer"),
        ('"z":-5', '"z":-0', "spelling"),
        ('"z":-5', '"z":NaN', "no integer"),
        ('"z":-5', '"z":-Infinity', "no integer"),
        ('"z":-5', '"z":18446744073709551616', "64 bits"),
        ('"z":-5', '"z":' + "9" * 6000, "64 bits"),
        ('"z":-5', '"z":-5,"z":-5', "spelling"),
        ('"z":-5', '"z":-5,"y":1', "spelling"),
        ('"z":-5', '"z" :-5', "spelling"),
        ('"z":-5}', '"z":-5 }', "spelling"),
        ('"z":-5', '"z":-5,', "no JSON"),
        ('"z":-5}', '"z":-5}}', "no JSON"),
        ('"x",null', '"\\u0078",null', "spelling"),
        ('"x",null', '"\\/",null', "spelling"),
        ('"x",null', '"\\u00E9",null', "spelling"),
        ('"x",null', '"\\ud83d",null', "surrogate"),
        ('"x",null', '"\\udc7f",null', "surrogate"),
        ('"x",null', '"\\ude00",null', "surrogate"),
        ('"x",null', '"é",null', "byte"),
        ('"x",null', '"\x00",null', "byte"),
        ('"x",null', '"\t",null', "byte"),
        ('"x",null', '"\x7f",null', "byte"),
        ('"prev":"0', '"prev":"', "prev"),
        ('"prev":"0', '"prev":"A', "prev"),
        ('"prev":"0', '"prev":"1', "chain"),
    ],
)
def test_a_sealed_line_with_another_spelling_is_damage_not_a_record(old: str, new: str, what: str) -> None:
    damage = damage_of(line_with(old, new))
    assert what in str(damage)
    assert damage.line == 1
    assert damage.expected
    assert damage.found


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda line: b"\n" + line, "empty line"),
        (lambda line: line[:-1] + b"\r\n", "0x0d"),
        (lambda line: b"\xef\xbb\xbf" + line, "0xef"),
        (lambda line: b" " + line, "altered"),
        (lambda line: line[:-1] + b" \n", "does not end with its sha256"),
        (lambda line: line[:-80] + b"\n", "does not end with its sha256"),
        (lambda line: b"{}\n", "does not end with its sha256"),
        (lambda line: sealed(""), "prev"),
        (lambda line: b"\x00" * 4096 + b"\n", "0x00"),
        (lambda line: line.replace(b"u.1", b"u.2"), "altered"),
        (lambda line: line[:-5] + b"\n" + line, "does not end with its sha256"),
        (lambda line: line + line, "out of order"),
        (lambda line: b"", "no whole record"),
        (lambda line: line[:-1], "no whole record"),
    ],
)
def test_a_broken_line_is_damage_that_says_why(spoil: Any, what: str) -> None:
    assert what in str(damage_of(spoil(encode(**_FIELDS)[0])))


def test_damage_names_the_line_and_the_byte_of_the_file() -> None:
    first, record = encode(**_FIELDS)
    second, _ = encode(**{**_FIELDS, "seq": 1, "prev": record.sha256})
    at = second.index(b"run-created")
    damage = damage_of(first + second[:at] + b"\x00" + second[at + 1 :])
    assert (damage.line, damage.offset, damage.found) == (2, len(first) + at, "0x00")


def test_a_newer_version_is_named_as_such_not_as_an_attack() -> None:
    body = '{"v":2,"number":7'
    damage = damage_of(sealed(body))
    assert "newer program" in damage.what
    assert damage.found == "v 2"


def test_a_deeply_damaged_line_gives_a_message_of_bounded_size() -> None:
    line = encode(**{**_FIELDS, "data": {"x": "y" * 1_000_000}})[0]
    for spoiled in (
        line.replace(b"y", b"z", 1),
        b"q" * 1_000_000 + b"\n",
        line[:-1] + b"\x1b[31m" * 1000 + b"\n",
    ):
        text = str(damage_of(spoiled))
        assert len(text) < 1000
        assert text.isprintable()


def test_integers_keep_all_their_64_bits() -> None:
    data = {"ino": 2**64 - 1, "low": -(2**63), "ns": 1_785_000_000_123_456_789}
    line, _ = encode(**{**_FIELDS, "data": data})
    assert parse(line).records[0].data == data
    assert json.loads(line)["data"] == data
