"""The demo's plan, its two units and what their author writes: data for the demo and both its agents."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

PLAN_PATH = "docs/plans/count-words.md"
PLAN = """\
# Plan: count words

## Goal
A small helper, `demo/words.py`, that counts the words of a text, with tests, and a line in the README.

## Definition of done
`python -m pytest demo` passes, and so do the tests the repository already had for its drop-in scripts.

## Units
### words
Adds `demo/words.py` and `demo/test_words.py`; adds one line to `README.md`.
"""

_WORDS = '''\
"""Counts words."""


def count(text: str) -> int:
    """The number of words in `text`, words being what white space separates."""
    return len(text.split())
'''
_TEST_WORDS = """\
import pytest
from demo.words import count


@pytest.mark.parametrize(("text", "words"), [("", 0), ("one", 1), (" two\\n words ", 2)])
def test_counts_words(text: str, words: int) -> None:
    assert count(text) == words
"""
# Plausible and wrong: the empty text now has one word. The tests of the first unit find it.
_FASTER_WORDS = '''\
"""Counts words, faster."""


def count(text: str) -> int:
    """The number of words in `text`: one more than its gaps."""
    return text.strip().count(" ") + 1
'''


@dataclass(frozen=True)
class Unit:
    """One unit: its packet (what the author is told) and its edits (what the author will do)."""

    name: str
    packet: str
    files: dict[str, str]
    appended: dict[str, str]
    removed: tuple[str, ...]
    summary: str

    @property
    def changed(self) -> list[str]:
        return sorted({*self.files, *self.appended, *self.removed})


def _packet(name: str, goal: str, files: str) -> str:
    return (
        f"# Unit {name}\n\nGoal: {goal}\n\nExpected files: {files}\n\n"
        "Acceptance and verification: `python -m pytest demo` passes.\n\n"
        "Constraints and exclusions: no other files; no git commands; no network.\n"
    )


WORDS = Unit(
    name="words",
    packet=_packet(
        "words",
        "add `demo/words.py` with `count(text) -> int`, its tests, and one line about it in `README.md`.",
        "demo/words.py, demo/test_words.py, README.md",
    ),
    files={"demo/words.py": _WORDS, "demo/test_words.py": _TEST_WORDS},
    appended={"README.md": "\nThe demo's author added `demo/words.py`, which counts words.\n"},
    removed=(),
    summary="Added count() with tests and a line in the README",
)
FASTER = Unit(
    name="faster",
    packet=_packet(
        "faster",
        "make `demo/words.py` faster; note it in `demo/NOTES.md`; drop the plan, it is done.",
        f"demo/words.py, demo/NOTES.md, {PLAN_PATH}",
    ),
    files={"demo/words.py": _FASTER_WORDS, "demo/NOTES.md": "count() no longer builds a list.\n"},
    appended={},
    removed=(PLAN_PATH,),
    summary="count() counts gaps and builds no list",
)
UNITS = {unit.name: unit for unit in (WORDS, FASTER)}

BRIEF = """\
# Request
Make the word counter of the first run faster.

# Goal
`demo/words.py` counts without building a list.

# Scope
demo/words.py, demo/NOTES.md and the finished plan.

# Acceptance and verification
`python -m pytest demo` passes.

# Constraints and exclusions
No other files.

# Units
P1: faster
"""


def answer(unit: Unit) -> dict[str, object]:
    """The five keys that an author's last message holds (protocol.md section 14)."""
    return {
        "terminal_status": "completed",
        "summary": unit.summary,
        "changed_files": unit.changed,
        "evidence": ["edited the files the packet names"],
        "scope_expansion": None,
    }


def as_shell(unit: Unit) -> str:
    """The unit's edits as one shell command, for an author whose only tool is a shell."""
    lines = ["set -e"]
    for path, text in unit.files.items():
        folder = shlex.quote(path.rpartition("/")[0] or ".")
        lines += [f"mkdir -p {folder}", f"printf %s {shlex.quote(text)} > {shlex.quote(path)}"]
    lines += [f"printf %s {shlex.quote(text)} >> {shlex.quote(path)}" for path, text in unit.appended.items()]
    lines += [f"rm {shlex.quote(path)}" for path in unit.removed]
    return "\n".join(lines)
