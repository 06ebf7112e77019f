"""Generated blocks of `journal_format.md`; `python -m tests.controller.journal_document` writes them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from controller.journal import GENESIS, encode
from controller.records import KINDS

DOCUMENT = Path(__file__).parents[2] / "journal_format.md"

_REPOSITORY = {
    "toplevel": "/home/ada/wordcount",
    "git_dir": "/home/ada/wordcount/.git",
    "common_dir": "/home/ada/wordcount/.git",
    "common_dev": 64768,
    "common_ino": 18446744073709551615,
    "identity_digest": "6a09e667f3bcc908b2fb1366ea957d3e3adec17512775099da2f590b0667322a",
    "object_format": "sha1",
}
_SOURCE = {"kind": "plan", "storage": "repository", "path": "docs/plan.md", "digest": "ab" * 32}
_BINDING = {"mode": "require", "target": "codex", "model": None, "source": "the user, in chat"}
_EGRESS = {"route": "codex", "intermediaries": [], "restrictions": ["no network"]}
_CONFIG: dict[str, Any] = {}
_BOUND = {
    "repository": _REPOSITORY,
    "source": _SOURCE,
    "binding": _BINDING,
    "egress": _EGRESS,
    "config": _CONFIG,
}
_BOOT = "5b2e6c1e-8f0b-4c57-9a55-0d8f6a1c2e77"


def _digest(value: Any) -> str:
    spelled = json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(spelled.encode("ascii")).hexdigest()


EXAMPLE: tuple[dict[str, Any], ...] = (
    {
        "at": "2026-08-01T09:30:00.000Z",
        "boot": _BOOT,
        "kind": "run-created",
        "unit": None,
        "attempt": None,
        "data": {
            **_BOUND,
            "run_id": "wordcount-1",
            "branch": {"ref": "refs/heads/main", "initial_head": "4b825dc642cb6eb9a060e54bf8d69288fbee4904"},
            "digests": {name: _digest(value) for name, value in _BOUND.items()},
        },
    },
    {
        "at": "2026-08-01T09:41:07.250Z",
        "boot": _BOOT,
        "kind": "restore-intent",
        "unit": "count-words",
        "attempt": "a1",
        "data": {"cause": "verification failed", "paths": ["src/caf\udce9.txt", "src/naïve.txt"]},
    },
    {
        "at": "2026-08-01T09:52:30.009Z",
        "boot": "c0ffee00-1d2e-4f30-8a41-5b6c7d8e9f00",
        "kind": "journal-torn-tail-moved",
        "unit": None,
        "attempt": None,
        "data": {"file": "journal.torn.1", "bytes": 5, "sha256": hashlib.sha256(b'{"v":').hexdigest()},
    },
)
"""The arguments of the three records of section 11."""


def block(name: str) -> str:
    """What stands between the begin and end markers of a block."""
    found = re.search(rf"<!-- {name}:begin -->\n(.*?)<!-- {name}:end -->", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert found is not None, f"journal_format.md has no block {name}"
    return found[1]


def kinds_table() -> str:
    """The table of record kinds: the meaning is a struct's docstring, its first line, no reference."""
    rows = []
    for kind, cls in KINDS.items():
        meaning = re.sub(r" \((?:protocol\.md )?section [^)]*\)", "", (cls.__doc__ or "").splitlines()[0])
        rows.append(f"| `{kind}` | {meaning} |\n")
    return "".join(["| kind | meaning |\n|---|---|\n", *rows])


def example() -> str:
    """The example as the product spells it, in a fence."""
    prev, lines = GENESIS, []
    for seq, fields in enumerate(EXAMPLE):
        line, record = encode(seq=seq, prev=prev, **fields)
        prev = record.sha256
        lines.append(line.decode("ascii"))
    return "".join(["```jsonl\n", *lines, "```\n"])


def _write() -> None:
    text = DOCUMENT.read_text("utf-8")
    for name, content in (("kinds", kinds_table()), ("example", example())):
        text = text.replace(
            f"<!-- {name}:begin -->\n{block(name)}<!-- {name}:end -->",
            f"<!-- {name}:begin -->\n{content}<!-- {name}:end -->",
        )
    DOCUMENT.write_text(text, "utf-8")


if __name__ == "__main__":
    _write()
