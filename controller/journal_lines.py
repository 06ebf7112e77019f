"""The lines of a journal, pure: one record, one legal spelling; `journal_format.md` sections 2 to 4 and 7.

No altered line is ever read as another record: whatever is read must spell and hash to the same bytes again.
Sizes and offsets are bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import datetime
from typing import Any, NoReturn

import msgspec

from controller.errors import Refused

VERSION = 1
GENESIS = "0" * 64

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_MAX_DEPTH = 64
_SAFE_ID = rb'(null|"(?!\.+")[A-Za-z0-9._-]{1,128}"),'
_HEAD_FIELDS = (
    ("v", rb"1,", "1"),
    ("seq", rb"(0|[1-9][0-9]{0,18}),", "an integer from 0"),
    (
        "at",
        rb'"([0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}\.[0-9]{3}Z)",',
        "a UTC time in ms",
    ),
    ("boot", rb'"([A-Za-z0-9._-]{1,128})",', "a boot id"),
    ("kind", rb'"([a-z][a-z0-9-]{0,63})",', "a record kind"),
    ("unit", _SAFE_ID, "null or a safe id"),
    ("attempt", _SAFE_ID, "null or a safe id"),
    ("data", rb"(?=\{)", "an object"),
)
_HEAD_PATTERNS = [b'"%s":%s' % (name.encode(), pattern) for name, pattern, _ in _HEAD_FIELDS]
_HEAD = re.compile(rb"\{" + b"".join(_HEAD_PATTERNS))
_PREV = re.compile(rb',"prev":"([0-9a-f]{64})"')
_PREV_BYTES = 74
_SEAL = re.compile(rb',"sha256":"([0-9a-f]{64})"\}')
_SEAL_BYTES = 77
_NOT_PLAIN = re.compile(rb"[^ -~]")
_VERSION = re.compile(rb'\{"v":([0-9]{1,9}),')
# Only U+DC80..U+DCFF stand for bytes of a name; a lone high surrogate could fuse with one of them in JSON.
_BAD_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")


class Record(msgspec.Struct, frozen=True):
    """One line of the journal; `data` is as a reader gets it (arrays are lists)."""

    v: int
    seq: int
    at: str
    boot: str
    kind: str
    unit: str | None
    attempt: str | None
    data: dict[str, Any]
    prev: str
    sha256: str


class JournalBytes(msgspec.Struct, frozen=True):
    """A validated journal: its records (at least one), their bytes, the unfinished append after them."""

    records: tuple[Record, ...]
    size: int
    torn: bytes


class Damage(ValueError):
    """A line that no writer of this format wrote: `line` from 1, `offset` in the file, what is wrong."""

    def __init__(self, line: int, offset: int, what: str, expected: str, found: str) -> None:
        super().__init__(f"line {line}, byte {offset}: {what}; expected {expected}, found {found}")
        self.line = line
        self.offset = offset
        self.what = what
        self.expected = expected
        self.found = found


class _Wrong(ValueError):
    """What is wrong with a line: what, expected, found, and at which of its bytes."""

    def __init__(self, what: str, expected: str, found: str, at: int = 0) -> None:
        super().__init__(what)
        self.what, self.expected, self.found, self.at = what, expected, found, at


def encode(
    *,
    seq: int,
    at: str,
    boot: str,
    kind: str,
    unit: str | None,
    attempt: str | None,
    data: dict[str, Any],
    prev: str,
) -> tuple[bytes, Record]:
    """The line (with its newline) and the record that a reader will make of it.

    `Refused` when it has no place in a journal (a float, a lone surrogate that stands for no byte, an unsafe
    unit id …): whatever is written passes first through the reader's checks.
    """
    try:
        sealed = _spell(seq, at, boot, kind, unit, attempt, data, prev)
        if b"\\ud" in sealed:
            _check_surrogates(data)
        line = b'%s,"sha256":"%s"}' % (sealed, hashlib.sha256(sealed).hexdigest().encode("ascii"))
        return line + b"\n", _decode(line)
    except _Wrong as wrong:
        what, expected, found = wrong.what, wrong.expected, wrong.found
    except (TypeError, ValueError, RecursionError) as error:
        what, expected, found = str(error), "JSON data", "something else"
    raise Refused(
        f"a {kind} record cannot be written to the journal: {what}",
        expected=expected,
        found=found,
        remedy="give another value; nothing was recorded",
    )


def spell(record: Record) -> bytes:
    """The record's line without its newline, byte for byte as in the journal."""
    r = record
    sealed = _spell(r.seq, r.at, r.boot, r.kind, r.unit, r.attempt, r.data, r.prev)
    return b'%s,"sha256":"%s"}' % (sealed, r.sha256.encode("ascii"))


def parse(data: bytes) -> JournalBytes:
    """The journal that these bytes are; `Damage` unless every whole line is a sealed link of one chain."""
    lines = data.split(b"\n")
    torn = lines.pop()
    if not lines:
        # A journal gets its name together with its first record: this is no unfinished append of ours.
        raise Damage(1, 0, "the journal holds no whole record", "a run-created record", _excerpt(data))
    records: list[Record] = []
    prev, offset = GENESIS, 0
    for seq, line in enumerate(lines):
        try:
            record = _decode(line)
            if record.seq != seq:
                raise _Wrong("a record is missing, doubled or out of order", f"seq {seq}", f"seq {record.seq}")
            if record.prev != prev:
                raise _Wrong("the chain is broken, prev is not the sha256 of the line before", prev, record.prev)
        except _Wrong as wrong:
            raise Damage(seq + 1, offset + wrong.at, wrong.what, wrong.expected, wrong.found) from None
        records.append(record)
        prev = record.sha256
        offset += len(line) + 1
    return JournalBytes(records=tuple(records), size=offset, torn=torn)


def _no_float(text: str) -> NoReturn:
    raise _Wrong("a number that is no integer", "integers only", text[:40])


def _integer(text: str) -> int:
    if len(text) > 20 or not _INT_MIN <= (number := int(text)) <= _INT_MAX:
        raise _Wrong("an integer that does not fit 64 bits", f"{_INT_MIN} to {_INT_MAX}", text[:40])
    return number


# Made once: json.loads and json.dumps with keywords build a new one for each call.
_DECODER = json.JSONDecoder(parse_float=_no_float, parse_int=_integer, parse_constant=_no_float)
_ENCODER = json.JSONEncoder(ensure_ascii=True, sort_keys=True, separators=(",", ":"))
_UNESCAPED = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _spell(
    seq: int, at: str, boot: str, kind: str, unit: str | None, attempt: str | None, data: Any, prev: str
) -> bytes:
    """The bytes of a line that its sha256 covers."""
    q = _ENCODER.encode
    return (
        f'{{"v":{VERSION},"seq":{seq},"at":{q(at)},"boot":{q(boot)},"kind":{q(kind)},"unit":{q(unit)},'
        f'"attempt":{q(attempt)},"data":{q(data)},"prev":{q(prev)}'
    ).encode("ascii")


def _decode(line: bytes) -> Record:
    """The record of one line without its newline; `_Wrong` unless it is spelled and sealed exactly."""
    seal_at = max(len(line) - _SEAL_BYTES, 0)
    prev_at = max(seal_at - _PREV_BYTES, 0)
    seal = _SEAL.fullmatch(line, seal_at)
    if seal is None:
        raise _broken(line) or _Wrong(
            "the line does not end with its sha256", '"sha256":"<64 hex>"}', _excerpt(line[seal_at:]), seal_at
        )
    sha256 = hashlib.sha256(line[:seal_at]).hexdigest()
    if sha256 != seal[1].decode("ascii"):
        raise _broken(line) or _Wrong(
            "the line was altered, its bytes have another sha256 than it carries",
            seal[1].decode("ascii"),
            sha256,
        )
    prev = _PREV.fullmatch(line, prev_at, seal_at)
    if prev is None:
        raise _broken(line) or _Wrong("no prev before sha256", '"prev":"<64 hex>"', _excerpt(line[prev_at:]), prev_at)
    head = _HEAD.match(line, 0, prev_at)
    if head is None:
        raise _broken(line) or _wrong_field(line[:prev_at])
    seq, at, boot, kind, unit, attempt = (group.decode("ascii") for group in head.groups())
    try:
        datetime.fromisoformat(at)
    except ValueError:
        raise _Wrong("at is no date", "a UTC time in ms", at, head.start(2)) from None
    return Record(
        v=VERSION,
        seq=int(seq),
        at=at,
        boot=boot,
        kind=kind,
        unit=None if unit == "null" else unit[1:-1],
        attempt=None if attempt == "null" else attempt[1:-1],
        data=_decode_data(line[head.end() : prev_at], head.end()),
        prev=prev[1].decode("ascii"),
        sha256=sha256,
    )


def _decode_data(spelled: bytes, at: int) -> dict[str, Any]:
    """The object whose one legal spelling is `spelled`, a brace and more from byte `at` of its line."""
    try:
        data: dict[str, Any] = _DECODER.decode(spelled.decode("ascii"))
        again = _ENCODER.encode(data).encode("ascii")
        if again != spelled:
            pairs = enumerate(zip(again, spelled, strict=False))
            same = next((i for i, (one, other) in pairs if one != other), min(len(again), len(spelled)))
            raise _Wrong("data is not in its one legal spelling", _excerpt(again[same:]), _excerpt(spelled[same:]))
        # Each level costs a bracket, so that most lines need no walk.
        if spelled.count(b"{") + spelled.count(b"[") > _MAX_DEPTH and _depth(data) > _MAX_DEPTH:
            raise RecursionError
        if b"\\ud" in spelled:
            _check_surrogates(data)
    except _Wrong as wrong:
        raise _Wrong(wrong.what, wrong.expected, wrong.found, at) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _Wrong("data is no JSON object", "a JSON object", str(error), at) from None
    except RecursionError:
        raise _Wrong("data is nested too deep", f"at most {_MAX_DEPTH} levels", "more", at) from None
    return data


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level:
        depth += 1
        groups = (item.values() if isinstance(item, dict) else item for item in level)
        level = [child for group in groups for child in group if isinstance(child, (dict, list))]
    return depth


def _check_surrogates(data: Any) -> None:
    bad = _BAD_SURROGATE.search(_UNESCAPED.encode(data))
    if bad:
        raise _Wrong("a lone surrogate that stands for no byte", "\\udc80 to \\udcff", ascii(bad[0])[1:-1])


def _broken(line: bytes) -> _Wrong | None:
    """What every kind of damage would hide behind a wrong hash: no line, a foreign byte, a newer format."""
    if not line:
        return _Wrong("an empty line", "a record", "nothing")
    if odd := _NOT_PLAIN.search(line):
        return _Wrong("a byte that no record has", "printable ASCII", f"0x{odd[0][0]:02x}", odd.start())
    version = _VERSION.match(line)
    if version and int(version[1]) != VERSION:
        found = version[1].decode("ascii")
        return _Wrong("an unknown version: a newer program wrote it, or it is damaged", f"v {VERSION}", f"v {found}")
    return None


def _wrong_field(line: bytes) -> _Wrong:
    """The first field that makes `_HEAD` fail."""
    end = count = 0
    while head := re.match(rb"\{" + b"".join(_HEAD_PATTERNS[: count + 1]), line):
        end = head.end()
        count += 1
    name, _, meaning = _HEAD_FIELDS[count]
    return _Wrong(f"the field {name} is wrong", f'"{name}": {meaning}', _excerpt(line[end:]), end)


def _excerpt(raw: bytes) -> str:
    text = ascii(raw[:60])[2:-1]
    return (text + " …" if len(raw) > 60 else text) or "nothing"
