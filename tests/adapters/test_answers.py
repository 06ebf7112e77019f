"""The final JSON object is found wherever a CLI puts it, and looking for it cannot be made to take for ever."""

from __future__ import annotations

import json
import time

import pytest

from adapters.answers import find_answer
from tests.adapters.support import ANSWER

LINE = json.dumps(ANSWER)
PRETTY = json.dumps(ANSWER, indent=2)


@pytest.mark.parametrize(
    "output",
    [
        LINE,
        PRETTY,
        f"I {{think}} that is it: {LINE} and {{ good bye",
        f"Here you are\n```json\n{PRETTY}\n```\nDone.",
        json.dumps({"type": "result", "result": f"All done.\n```json\n{PRETTY}\n```"}),
        json.dumps([{"messages": [{"content": [{"text": LINE}]}]}], indent=1),
        json.dumps({"outer": json.dumps({"inner": LINE})}),
        "{broken\n" + LINE + "\n" + json.dumps({"type": "turn.completed"}),
    ],
    ids=["line", "pretty", "prose", "fence", "string-in-event", "nested", "twice-encoded", "among-lines"],
)
def test_the_answer_is_found(output: str) -> None:
    assert find_answer(output.encode()) == ANSWER


def test_the_last_of_several_answers_counts() -> None:
    last = {**ANSWER, "summary": "last"}
    assert find_answer(f"{LINE}\n{PRETTY}\n{json.dumps(last)}\nbye".encode()) == last
    assert find_answer(json.dumps({"first": LINE, "second": last}).encode()) == last


def test_an_object_that_lacks_a_key_does_not_hide_an_answer_before_it() -> None:
    partial = {key: value for key, value in ANSWER.items() if key != "evidence"}
    assert find_answer(f"{LINE}\n{json.dumps(partial)}\n".encode()) == ANSWER


def test_braces_and_many_files_before_the_last_key_do_not_hide_the_answer() -> None:
    answer = {**ANSWER, "changed_files": [f"src/{n}.ts" for n in range(20_000)], "evidence": ["if (x) { y }"] * 3000}
    assert find_answer(json.dumps(answer, indent=1, sort_keys=True).encode()) == answer


def test_raw_line_breaks_in_a_string_are_forgiven() -> None:
    assert find_answer(LINE.replace('"done"', '"two\nlines"').encode()) == {**ANSWER, "summary": "two\nlines"}


def test_a_file_name_that_is_no_utf8_is_kept_exactly() -> None:
    answer = find_answer(LINE.encode().replace(b"a.txt", b"a\xff.txt"))
    assert answer is not None
    assert answer["changed_files"] == ["a\udcff.txt"]


@pytest.mark.parametrize("output", ["", "no JSON", "{}", '"terminal_status"', "terminal_status {", '{"terminal_status'])
def test_no_answer_is_none(output: str) -> None:
    assert find_answer(output.encode()) is None


@pytest.mark.parametrize(
    "output",
    [
        b"terminal_status " * 500_000,
        b"{" * 8_000_000 + b"terminal_status",
        b'{"' * 4_000_000 + b"terminal_status",
        b'{"a":' * 1_500_000 + b'"terminal_status"',
        b"[" * 5_000_000 + b"terminal_status",
        b'{"terminal_status": 1\n' * 300_000,
        b'{"a":' * 900 + b'{"terminal_status":1}' + b"}" * 900,
    ],
    ids=["words", "braces", "keys", "nesting", "brackets", "broken-lines", "deep"],
)
def test_output_made_to_be_slow_is_given_up_on(output: bytes) -> None:
    started = time.process_time()
    assert find_answer(output) is None
    assert time.process_time() - started < 8.0
