"""A task file (seed 003's WORKER_TASK): a frontmatter that names one feature, its scope and worker, then the prompt.

    ---
    id: T-012                      # default: the file's name
    feature: F-007                 # exactly one
    write_allowed: [src/auth/**]   # the only paths that may change (globs); or read_only: true
    routing:                       # seed 003 step 1; needed unless the invocation names a worker
      needs_judgment: no
      many_files: no
      mechanically_verifiable: yes
    invocation:                    # optional: overrides the Fleet table for this task
      worker: codex
      tier: standard
    ---

Parsing is pure: bytes in, a checked `TaskFile` out, or a `Refusal` that names the line. The whole file, byte for
byte, is the unit's packet.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from adapters import frontmatter, secret_scan
from adapters.frontmatter import Mapping, Node, Scalar, Sequence
from adapters.invocation import FIELDS as INVOCATION_FIELDS
from adapters.invocation import Pins, from_command, from_fields
from adapters.refusal import Refusal, quoted, unknown

MAX_TASK_BYTES = 200_000
"""A packet's limit (protocol section 17)."""

QUESTIONS = ("needs_judgment", "many_files", "mechanically_verifiable", "high_volume")
"""The routing questions in the order in which they are asked: the first decides whether to dispatch at all."""

_KEYS = (
    "id",
    "title",
    "feature",
    "features",
    "invocation",
    "routing",
    "escalated",
    "attempt",
    "depends_on",
    "write_allowed",
    "read_allowed",
    "read_only",
    "network",
    "timeout_sec",
)
_ID = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,128}")
_FLAGS = {"true": True, "yes": True, "false": False, "no": False}
_DEFAULT_TIMEOUT = 900


class TaskFile(msgspec.Struct, frozen=True, kw_only=True):
    """One checked task. `answers` holds the routing questions that were answered; times are seconds.

    `write_allowed` is the only enforced list; `read_allowed` is advice to the worker (seed 000).
    """

    id: str
    title: str | None
    feature: str
    invocation: Pins | None
    answers: dict[str, bool]
    escalated: bool
    attempt: int
    depends_on: tuple[str, ...]
    write_allowed: tuple[str, ...]
    read_allowed: tuple[str, ...]
    read_only: bool
    network: bool
    timeout_sec: int


def parse_task(data: bytes, name: str) -> TaskFile:
    """Check the bytes of the task file called `name` (its stem is the default id)."""
    if len(data) > MAX_TASK_BYTES:
        raise Refusal(
            "the task file is too large to be a packet",
            expected=f"at most {MAX_TASK_BYTES} bytes",
            found=f"more than {MAX_TASK_BYTES} bytes",
            remedy="split the task, or name files of the repository instead of quoting them",
        )
    text = _decoded(data)
    lines, _ = frontmatter.split(text)
    keys = frontmatter.parse(lines)
    for key, node in keys.entries.items():
        if key not in _KEYS:
            raise _unknown_key(key, node)
    task = TaskFile(
        id=_id(keys, name),
        title=_title(keys),
        feature=_feature(keys),
        invocation=_invocation(keys),
        answers=_answers(keys),
        escalated=_flag(keys, "escalated"),
        attempt=_number(keys, "attempt", 1, 1, 99),
        depends_on=_each(keys, "depends_on", _require_id),
        write_allowed=_each(keys, "write_allowed", _require_glob),
        read_allowed=_each(keys, "read_allowed", _require_glob),
        read_only=_flag(keys, "read_only"),
        network=_flag(keys, "network"),
        timeout_sec=_number(keys, "timeout_sec", _DEFAULT_TIMEOUT, 1, 7 * 24 * 3600),
    )
    _check_scope(keys, task)
    if task.id in task.depends_on:
        raise _at(keys, "depends_on", "a task cannot depend on itself", found=task.id, remedy="remove it")
    _refuse_secrets(text)
    return task


def _decoded(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise Refusal(
            f"line {line}: the task file is not UTF-8",
            expected="UTF-8 text",
            found=f"byte 0x{data[error.start]:02x}",
            remedy="convert the file; a worker reads its packet as UTF-8",
            line=line,
        ) from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise Refusal(f"line {line}: a NUL byte", expected="a text file", found="NUL", remedy="remove it", line=line)
    return text


def _refuse_secrets(text: str) -> None:
    findings = secret_scan.scan(text)
    if not findings:
        return
    shown = ", ".join(f"line {finding.line}: {finding.kind}" for finding in findings[:10])
    raise Refusal(
        "the task file holds what looks like a secret",
        expected="no credentials: a prompt ends up in transcripts and logs",
        found=shown + (f", and {len(findings) - 10} more" if len(findings) > 10 else ""),
        remedy="take it out and revoke it if it is real; name the variable or file that holds it instead",
        line=findings[0].line,
    )


def _unknown_key(key: str, node: Node) -> Refusal:
    if key in INVOCATION_FIELDS or key == "backend":
        name = "worker" if key == "backend" else key
        return Refusal(
            f"unknown key {key!r}: it is a field of the invocation",
            expected="worker, model, tier, effort and stance below `invocation:`",
            found=f"{key!r} as a key of the task",
            remedy=f"write `invocation:` and below it, indented, `{name}: …`",
        )
    if key in QUESTIONS:
        return Refusal(
            f"unknown key {key!r}: it is a routing question",
            expected="the answers below `routing:`",
            found=f"{key!r} as a key of the task",
            remedy=f"write `routing:` and below it, indented, `{key}: …`",
        )
    return unknown("key", key, _KEYS, line=node.line)


def _id(keys: Mapping, name: str) -> str:
    given = _text(keys, "id")
    if given is not None:
        _require_id(given)
        return given.text
    stem = name.rsplit(".", 1)[0] if "." in name.lstrip(".") else name
    if _ID.fullmatch(stem) is None:
        raise Refusal(
            "the file's name is no id for a unit",
            expected="1 to 128 of A-Z a-z 0-9 . _ -, not only dots",
            found=quoted(stem),
            remedy="add `id: …` to the frontmatter, or rename the file",
        )
    return stem


def _title(keys: Mapping) -> str | None:
    found = _text(keys, "title")
    return None if found is None else found.text


def _feature(keys: Mapping) -> str:
    named = [item for key in ("feature", "features") for item in _texts(keys, key)]
    # `F-1, F-2` and `F-1 and F-2` name two, but "Search and replace" is one feature's name.
    names: list[str] = []
    for item in named:
        parts = [part.strip() for part in re.split(r"[,;]", item.text)]
        joined = [part.strip() for part in re.split(r"\band\b|[&+]", item.text)]
        if len(joined) > 1 and all(re.fullmatch(r"\S*[0-9]\S*", part) for part in joined):
            parts = joined
        names += [part for part in parts if part]
    remedy = "name the one feature that this task is for; make a task of its own for each other"
    if not names:
        raise Refusal("the task names no feature", expected="feature: exactly one", found="none", remedy=remedy)
    if len(names) > 1:
        raise Refusal(
            f"the task names {len(names)} features",
            expected="feature: exactly one",
            found=quoted(", ".join(names)),
            remedy=remedy,
            line=named[0].line,
        )
    return names[0]


def _invocation(keys: Mapping) -> Pins | None:
    node = keys.entries.get("invocation")
    if node is None:
        return None
    place = f"invocation (line {node.line})"
    if isinstance(node, Scalar) and node.text:
        return from_command(node.text, place, line=node.line)
    if not isinstance(node, Mapping):
        raise _at(
            keys,
            "invocation",
            "the invocation is neither a command line nor fields",
            expected="worker, model, tier, effort, stance below it, or one command line",
            found="a list" if isinstance(node, Sequence) else "nothing",
            remedy="write for example `worker: codex` and `tier: standard` below it",
        )
    fields: dict[str, str] = {}
    for name, value in node.entries.items():
        field = "worker" if name == "backend" else name
        if field in fields:
            raise Refusal(f"{place}: worker and backend are the same", remedy="keep one", line=value.line)
        if not isinstance(value, Scalar) or not value.text:
            raise Refusal(
                f"{place}: {name} needs one text", found="none", remedy="name it or remove it", line=value.line
            )
        fields[field] = value.text
    return from_fields(fields, place, line=node.line)


def _answers(keys: Mapping) -> dict[str, bool]:
    node = keys.entries.get("routing")
    if node is None:
        return {}
    if not isinstance(node, Mapping):
        raise _at(
            keys,
            "routing",
            "the routing questions need an answer each",
            expected=", ".join(f"{question}: yes or no" for question in QUESTIONS),
            remedy="answer them in indented lines below `routing:`",
        )
    for question, answer in node.entries.items():
        if question not in QUESTIONS:
            raise unknown("routing question", question, QUESTIONS, line=answer.line)
    return {question: _flag(node, question) for question in QUESTIONS if question in node.entries}


def _check_scope(keys: Mapping, task: TaskFile) -> None:
    if task.read_only and task.write_allowed:
        raise _at(
            keys,
            "write_allowed",
            "a read-only task names paths that may change",
            expected="read_only: true, or write_allowed",
            found=f"both, with {quoted(', '.join(task.write_allowed))}",
            remedy="remove one of them",
        )
    if not task.read_only and "write_allowed" not in keys.entries:
        raise Refusal(
            "the task does not say what may change",
            expected="write_allowed: a list of globs, or read_only: true",
            found="neither",
            remedy="list the paths; everything else that changes blocks the unit",
        )


def _require_id(item: Scalar) -> None:
    if _ID.fullmatch(item.text) is None:
        raise Refusal(
            f"line {item.line}: no id",
            expected="1 to 128 of A-Z a-z 0-9 . _ -, not only dots",
            found=quoted(item.text),
            remedy="choose another",
            line=item.line,
        )


def _require_glob(item: Scalar) -> None:
    pattern = item.text
    parts = pattern.split("/")
    why = ""
    if pattern.startswith("/") or parts[0] == ".":
        why = "begins with '/' or './'"
    elif pattern.endswith("/"):
        why = f"ends with '/'; a folder and all below it is {pattern.rstrip('/')}/**"
    elif "" in parts:
        why = "is empty or holds '//'"
    elif ".." in parts or ".git" in parts:
        why = "leads out of the checkout or into its .git"
    elif re.search(r"[\x00-\x1f]", pattern):
        why = "holds a control character"
    if why:
        raise Refusal(
            f"line {item.line}: the glob can never match a path of the checkout: it {why}",
            expected="a path relative to the top level, such as src/auth/** or docs/*.md",
            found=quoted(pattern),
            remedy="correct or remove it",
            line=item.line,
        )


def _each(keys: Mapping, key: str, check: Callable[[Scalar], None]) -> tuple[str, ...]:
    items = _texts(keys, key)
    seen: set[str] = set()
    for item in items:
        check(item)
        if item.text in seen:
            raise _at(keys, key, f"{key} holds a value twice", found=quoted(item.text), remedy="remove one")
        seen.add(item.text)
    return tuple(item.text for item in items)


def _texts(keys: Mapping, key: str) -> tuple[Scalar, ...]:
    node = keys.entries.get(key)
    if node is None:
        return ()
    if isinstance(node, Sequence):
        return node.items
    if isinstance(node, Scalar) and node.text:
        return (node,)
    raise _at(keys, key, f"{key} has no value", expected="a text or a list", remedy="fill it in; an empty list is []")


def _text(keys: Mapping, key: str) -> Scalar | None:
    node = keys.entries.get(key)
    if node is None:
        return None
    if not isinstance(node, Scalar) or not node.text:
        raise _at(keys, key, f"{key} needs one text", remedy="write it after the colon, or remove the key")
    return node


def _flag(keys: Mapping, key: str) -> bool:
    node = _text(keys, key)
    if node is None:
        return False
    if node.quoted or node.text.lower() not in _FLAGS:
        raise _at(keys, key, f"{key} is neither yes nor no", expected="yes, no, true or false", found=quoted(node.text))
    return _FLAGS[node.text.lower()]


def _number(keys: Mapping, key: str, default: int, least: int, most: int) -> int:
    node = _text(keys, key)
    if node is None:
        return default
    if re.fullmatch(r"[0-9]{1,9}", node.text) is None or not least <= int(node.text) <= most:
        raise _at(keys, key, f"{key} is out of range", expected=f"{least} to {most}", found=quoted(node.text))
    return int(node.text)


def _at(keys: Mapping, key: str, what: str, *, expected: str = "", found: str = "", remedy: str = "") -> Refusal:
    line = keys.entries[key].line
    return Refusal(f"line {line}: {what}", expected=expected, found=found, remedy=remedy, line=line)
