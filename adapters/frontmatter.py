"""The head of a task file between two `---` lines: a strict subset of YAML, read without guessing. Pure.

    key: plain text            # a comment
    key: "quoted \\" text"     key: 'it''s'
    key: [one, "two"]          key:
    key:                         inner: text
      - item                     other: [list]

What YAML would read differently from how it looks is refused with the way to write it: anchors, tags, block
scalars, flow mappings, unquoted `*`, keys twice, tabs. No value is typed here: the schema says what a key is.
"""

from __future__ import annotations

import re
from typing import NoReturn

import msgspec

from adapters.refusal import Refusal, quoted

FENCE = "---"


class Scalar(msgspec.Struct, frozen=True):
    """One text and its 1-based line."""

    text: str
    line: int
    quoted: bool = False


class Sequence(msgspec.Struct, frozen=True):
    """A list of texts."""

    items: tuple[Scalar, ...]
    line: int


class Mapping(msgspec.Struct, frozen=True):
    """Keys in the order in which they stand."""

    entries: dict[str, Node]
    line: int


Node = Scalar | Sequence | Mapping


class _Line(msgspec.Struct, frozen=True):
    number: int
    indent: int
    text: str


_KEY = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)[ \t]*:(?:[ \t]+|\Z)")
_ESCAPE = re.compile(r'\\(?:(["\\/nt])|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4}))')
_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "n": "\n", "t": "\t"}
_QUOTED = re.compile(r""""((?:[^"\\]|\\.)*)"|'((?:[^']|'')*)'""")
# Controls, line separators that YAML breaks at, and marks that make a line read differently from what it holds.
_HIDDEN = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_RESERVED = "&*!|>%@`{}[],"


def split(text: str) -> tuple[list[str], int]:
    """The lines between the fences, and the 1-based number of the line after them."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if lines[0].rstrip() != FENCE:
        _refuse(
            1,
            "the task file does not begin with a frontmatter",
            expected="a first line '---'",
            found=quoted(lines[0]) if lines[0] else "an empty line",
            remedy="put '---', the keys (at least feature and write_allowed), and '---' before the text",
        )
    for number, line in enumerate(lines[1:], 2):
        if line.rstrip() == FENCE:
            return lines[1 : number - 1], number + 1
    return _refuse(
        len(lines),
        "the frontmatter is not closed",
        expected="a second line '---'",
        found="the end of the file",
        remedy="end the keys with a line '---'",
    )


def parse(lines: list[str], first: int = 2) -> Mapping:
    """The keys of `lines`, the first of which has the number `first`; `Refusal` names the line at fault."""
    content = [found for number, line in enumerate(lines, first) if (found := _content(number, line)) is not None]
    if content and content[0].indent:
        _refuse(content[0].number, "the first key is indented", remedy="begin it in the first column")
    return _mapping(content, first, nested=False)


def _content(number: int, line: str) -> _Line | None:
    stripped = line.lstrip(" ")
    if stripped.startswith("\t"):
        _refuse(number, "a tab indents the line", expected="spaces", found="a tab", remedy="indent with spaces")
    hidden = _HIDDEN.search(line)
    if hidden is not None:
        _refuse(number, "an invisible character", found=f"U+{ord(hidden[0]):04X}", remedy="remove it")
    if not stripped.strip() or stripped.startswith("#"):
        return None
    return _Line(number, len(line) - len(stripped), stripped.rstrip())


def _mapping(lines: list[_Line], number: int, *, nested: bool) -> Mapping:
    entries: dict[str, Node] = {}
    where: dict[str, int] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        key, rest = _key(line)
        if key in entries:
            _refuse(
                line.number,
                f"the key {key!r} is there twice",
                expected="each key once",
                found=f"lines {where[key]} and {line.number}",
                remedy="remove one of them",
            )
        end = at + 1
        while end < len(lines) and (lines[end].indent > line.indent or _is_item(lines[end], line.indent)):
            end += 1
        where[key] = line.number
        entries[key] = _value(key, line, rest, lines[at + 1 : end], nested=nested)
        at = end
        if at < len(lines) and lines[at].indent != line.indent:
            _refuse(lines[at].number, "the indentation fits no key above", remedy="align it with the other keys")
    return Mapping(entries, number)


def _is_item(line: _Line, indent: int) -> bool:
    return line.indent == indent and (line.text == "-" or line.text.startswith("- "))


def _key(line: _Line) -> tuple[str, str]:
    found = _KEY.match(line.text)
    if found is None:
        _refuse(
            line.number,
            "the line is no key",
            expected="`key: value`, `key:` with indented lines below, or a comment",
            found=quoted(line.text),
            remedy="a key is letters, digits, '_' and '-', then ': '",
        )
    return found[1], line.text[found.end() :]


def _value(key: str, line: _Line, rest: str, below: list[_Line], *, nested: bool) -> Node:
    if rest and not rest.startswith("#"):
        if below:
            _refuse(
                below[0].number,
                f"the value of {key!r} goes on in a second line",
                expected="a value in one line",
                found=quoted(below[0].text),
                remedy="write it in one line, or leave the key's own line empty",
            )
        return _flow(rest, line.number) if rest.startswith("[") else _scalar(rest, line.number)
    if not below:
        return Scalar("", line.number)
    if below[0].text == "-" or below[0].text.startswith("- "):
        return Sequence(tuple(_item(entry, below[0].indent) for entry in below), line.number)
    if nested:
        _refuse(below[0].number, f"{key!r} is nested too deeply", remedy="use at most one level of inner keys")
    return _mapping(below, line.number, nested=True)


def _item(line: _Line, indent: int) -> Scalar:
    text = line.text[1:].strip()
    if line.indent != indent or not (line.text == "-" or line.text.startswith("- ")) or not text:
        _refuse(
            line.number,
            "the line is no list item",
            expected="`- text`, aligned with the items above",
            found=quoted(line.text),
            remedy='write one `- text` a line; a text may be quoted: `- "text"`',
        )
    if text.startswith(("- ", "[")):
        _refuse(
            line.number, "a list in a list", found=quoted(text), remedy="list items are texts; quote it if it is one"
        )
    return _scalar(text, line.number)


def _scalar(text: str, number: int) -> Scalar:
    scalar, end = _token(text, 0, number, flow=False)
    rest = text[end:].strip()
    if rest and not (rest.startswith("#") and text[end] in " \t"):
        _refuse(
            number,
            "text follows the closing quote",
            found=quoted(rest),
            remedy="put the whole value inside the quotes",
        )
    return scalar


def _flow(text: str, number: int) -> Sequence:
    items: list[Scalar] = []
    at = 1
    while True:
        while at < len(text) and text[at] in " \t":
            at += 1
        if at < len(text) and text[at] == "]":
            break
        item, at = _token(text, at, number, flow=True)
        if not item.text and not item.quoted:
            _refuse(number, "the list has an empty item", found=quoted(text), remedy="remove the extra comma")
        items.append(item)
        while at < len(text) and text[at] in " \t":
            at += 1
        if at < len(text) and text[at] == ",":
            at += 1
        elif at >= len(text) or text[at] != "]":
            _refuse(
                number, "the list is not closed in its line", expected="]", found=quoted(text), remedy="close it with ]"
            )
    rest = text[at + 1 :]
    if rest.strip() and not (rest[0] in " \t" and rest.strip().startswith("#")):
        _refuse(number, "text follows the list", found=quoted(rest.strip()), remedy="end the line after ]")
    return Sequence(tuple(items), number)


def _token(text: str, at: int, number: int, *, flow: bool) -> tuple[Scalar, int]:
    if text[at : at + 1] in ('"', "'"):
        found = _QUOTED.match(text, at)
        if found is None:
            _refuse(number, "a quote is not closed", found=quoted(text[at:]), remedy="close it in the same line")
        content = _unescape(found[1], number) if found[1] is not None else found[2].replace("''", "'")
        return Scalar(content, number, quoted=True), found.end()
    end = len(text)
    comment = re.search(r"[ \t]#", text[at:])
    if comment is not None:
        end = at + comment.start()
    if flow:
        closing = re.search(r"[,\]]", text[at:end])
        end = at + closing.start() if closing is not None else end
    plain = text[at:end].strip()
    misread = plain[:1] in _RESERVED if plain else False
    misread = misread or re.search(r":(?:[ \t]|\Z)|\A[-?:](?:[ \t]|\Z)", plain) is not None
    if misread or (flow and re.search(r"[\[{}]", plain)):
        _refuse(
            number,
            "a value that YAML would not read as this text",
            expected="a quoted text",
            found=quoted(plain),
            remedy=f"write '{plain.replace(chr(39), chr(39) * 2)}' with the quotes",
        )
    return Scalar(plain, number), end


def _unescape(content: str, number: int) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[1]:
            return _ESCAPED[match[1]]
        char = chr(int(match[2] or match[3], 16))
        if char == "\0" or "\ud800" <= char <= "\udfff":
            _refuse(number, "an escape that is no character", found=match[0], remedy="write the character itself")
        return char

    out: list[str] = []
    at = 0
    while (backslash := content.find("\\", at)) >= 0:
        found = _ESCAPE.match(content, backslash)
        if found is None:
            _refuse(
                number,
                "an unknown escape in a quoted text",
                expected=r"one of \" \\ \/ \n \t \xNN \uNNNN",
                found=content[backslash : backslash + 2],
                remedy="use single quotes, in which a backslash is itself",
            )
        out += (content[at:backslash], replace(found))
        at = found.end()
    return "".join([*out, content[at:]])


def _refuse(line: int, what: str, *, expected: str = "", found: str = "", remedy: str = "") -> NoReturn:
    raise Refusal(f"line {line}: {what}", expected=expected, found=found, remedy=remedy, line=line)
