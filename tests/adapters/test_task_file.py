"""A task file says one thing or is refused: one feature, a scope that can match, a head that is read as it looks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters import frontmatter
from adapters.frontmatter import Mapping, Scalar, Sequence
from adapters.refusal import Refusal
from adapters.task_file import MAX_TASK_BYTES, TaskFile, parse_task

BASE = "feature: F-007\nwrite_allowed: [src/**]\n"


def parse(keys: str, body: str = "Do it.\n", name: str = "T-012.md") -> TaskFile:
    return parse_task(f"---\n{keys}---\n{body}".encode(), name)


def refusal(keys: str, body: str = "Do it.\n", name: str = "T-012.md") -> Refusal:
    with pytest.raises(Refusal) as caught:
        parse(keys, body, name)
    return caught.value


def test_the_keys_of_a_task_are_read() -> None:
    task = parse(
        """\
# a comment
id: T-012.b   # the unit's id
title: "Log in: #1"
feature: F-007

write_allowed:
- src/auth/**
- 'docs/it''s here.md'
- "**/*.py"
read_allowed: [lib/**, "a, b", 'c']
depends_on: [T-010, T-011]
network: no
timeout_sec: 1200
attempt: 2
escalated: TRUE
invocation:
    worker: codex
    tier: standard
"""
    )
    assert (task.id, task.title, task.feature) == ("T-012.b", "Log in: #1", "F-007")
    assert task.write_allowed == ("src/auth/**", "docs/it's here.md", "**/*.py")
    assert task.read_allowed == ("lib/**", "a, b", "c")
    assert task.depends_on == ("T-010", "T-011")
    assert (task.network, task.timeout_sec, task.attempt, task.escalated) == (False, 1200, 2, True)
    assert task.invocation is not None
    assert (task.invocation.worker, task.invocation.tier) == ("codex", "standard")


def test_windows_line_ends_change_nothing() -> None:
    text = f"---\n{BASE}title: x\n---\nbody\n"
    assert parse_task(text.replace("\n", "\r\n").encode(), "T-1.md") == parse_task(text.encode(), "T-1.md")


def test_a_read_only_task_needs_no_paths() -> None:
    assert parse("feature: F-1\nread_only: yes\n").write_allowed == ()
    assert parse("feature: F-1\nwrite_allowed: []\n").write_allowed == ()


# --- one feature ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "named",
    [
        "feature: F-1, F-2\n",
        "feature: F-1 and F-2\n",
        "feature: F-1 & F-2\n",
        "feature: [F-1, F-2]\n",
        "features:\n  - F-1\n  - F-2\n",
        "feature: F-1\nfeatures: [F-2]\n",
        "feature: login; logout\n",
    ],
)
def test_a_task_for_two_features_is_refused(named: str) -> None:
    error = refusal(f"{named}write_allowed: [src/**]\n")
    assert error.message == "the task names 2 features"
    assert error.line is not None


@pytest.mark.parametrize("named", ["", "feature: []\n", "features: []\n", 'feature: " "\n'])
def test_a_task_for_no_feature_is_refused(named: str) -> None:
    assert refusal(f"{named}write_allowed: [src/**]\n").message == "the task names no feature"


@pytest.mark.parametrize("name", ["F-007", "Search and replace", "auth/login#2", "R&D page"])
def test_one_feature_of_any_name_is_one(name: str) -> None:
    assert parse(f"feature: {name}\nwrite_allowed: [a]\n").feature == name


def test_a_file_without_a_head_is_refused() -> None:
    for data in (b"", b"Do it.\n", b"\n---\nfeature: x\n---\n", b"--- \nfeature: x\n", b"---\n"):
        with pytest.raises(Refusal) as caught:
            parse_task(data, "T-1.md")
        assert "frontmatter" in caught.value.message


# --- the scope ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern", ["/etc/**", "./src/**", "src//a", "../x/**", "a/../b", ".git/hooks/**", "src/", '""', '"a\\nb"']
)
def test_a_glob_that_can_never_match_is_refused(pattern: str) -> None:
    assert "never match" in refusal(f"feature: F-1\nwrite_allowed: [{pattern}]\n").message


@pytest.mark.parametrize("pattern", ["src/**", "a b/ü.md", "src/a:b", "'#x'", "a..b/c", ".gitignore", "src/.github/**"])
def test_a_path_of_any_name_can_be_allowed(pattern: str) -> None:
    assert parse(f"feature: F-1\nwrite_allowed:\n  - {pattern}\n").write_allowed == (pattern.strip("'"),)


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ("feature: F-1\n", "does not say what may change"),
        ("feature: F-1\nread_only: yes\nwrite_allowed: [a]\n", "read-only task names paths"),
        ("feature: F-1\nwrite_allowed:\n", "write_allowed has no value"),
        ("feature: F-1\nwrite_allowed: [a, a]\n", "a value twice"),
        (BASE + "depends_on: [T-012]\n", "depend on itself"),
        (BASE + "depends_on: [a b]\n", "no id"),
        (BASE + "id: ..\n", "no id"),
        (BASE + "read_only: maybe\n", "neither yes nor no"),
        (BASE + 'network: "yes"\n', "neither yes nor no"),
        (BASE + "timeout_sec: 0\n", "out of range"),
        (BASE + "timeout_sec: 1e3\n", "out of range"),
        (BASE + "timeout_sec: 99999999999999999999\n", "out of range"),
        (BASE + "title:\n", "title needs one text"),
        (BASE + "invocation:\n", "neither a command line nor fields"),
        (BASE + "invocation: [codex]\n", "neither a command line nor fields"),
        (BASE + "invocation:\n  worker: codex\n  backend: codex\n", "the same"),
        (BASE + "invocation:\n  worker:\n", "needs one text"),
        (BASE + "routing: yes\n", "need an answer each"),
    ],
)
def test_a_value_that_means_nothing_is_refused(keys: str, word: str) -> None:
    assert word in refusal(keys).message


def test_the_name_of_the_file_must_be_an_id_when_none_is_given() -> None:
    assert parse(BASE, name="T-9").id == "T-9"
    assert parse(BASE, name="a.b.md").id == "a.b"
    assert "no id for a unit" in refusal(BASE, name="my task.md").message
    assert "no id for a unit" in refusal(BASE, name="\udcff.md").message
    assert parse(BASE + "id: ok\n", name="my task.md").id == "ok"


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ("write-allowed: [a]\n", "did you mean 'write_allowed'"),
        ("Feature2: x\n", "did you mean 'feature'"),
        ("escalate: yes\n", "did you mean 'escalated'"),
        ("model: gpt-5\n", "`model: …`"),
        ("backend: codex\n", "`worker: …`"),
        ("needs_judgment: no\n", "below it, indented"),
        ("routing:\n  many_file: no\n", "did you mean 'many_files'"),
        ("invocation:\n  efort: low\n", "did you mean 'effort'"),
        ("invocation:\n  worker: codx\n", "did you mean 'codex'"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(keys: str, hint: str) -> None:
    assert hint in refusal(BASE + keys).remedy


# --- the head is read as it looks, or not at all --------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("feature: F-1\nfeature: F-2\n", 3),
        ("invocation:\n  tier: deep\n  tier: light\n", 4),
        ("a: b: c\n", 2),
        ("a: b:\n", 2),
        ("just text\n", 2),
        ("a:b\n", 2),
        (" a: b\n", 2),
        ("a:\n\t- b\n", 3),
        ("a: |\n  text\n", 3),
        ("a: |\n", 2),
        ("a: >-\n", 2),
        ("a: *x\n", 2),
        ("a: &x y\n", 2),
        ("a: !x y\n", 2),
        ("a: {b: c}\n", 2),
        ("a: [b, [c]]\n", 2),
        ("a: [b, , c]\n", 2),
        ("a: [b\n", 2),
        ("a: [b,\n  c]\n", 3),
        ("a: [b] c\n", 2),
        ("a: 'b\n", 2),
        ('a: "b\n', 2),
        ('a: "b" c\n', 2),
        ('a: "b"c\n', 2),
        ('a: "\\q"\n', 2),
        ('a: "\\ud800"\n', 2),
        ('a: "\\x00"\n', 2),
        ("a: b\n  c\n", 3),
        ("a:\n  - b\n  c: d\n", 4),
        ("a:\n  - b\n    - c\n", 4),
        ("a:\n  - - b\n", 3),
        ("a:\n  - b: c\n", 3),
        ("a:\n  -\n", 3),
        ("a:\n  b:\n    c: d\n", 4),
        ("a:\n    b: c\n  d: e\n", 4),
        ("- a\n", 2),
        ("? a\n", 2),
        ("a: \u202eb\n", 2),
        ("a: b\u2028c: d\n", 2),
        ("a: \x07\n", 2),
        ("<<: x\n", 2),
        ("%YAML 1.2\n", 2),
    ],
)
def test_a_head_that_a_yaml_reader_would_read_otherwise_is_refused_by_line(keys: str, line: int) -> None:
    lines, after = frontmatter.split(f"---\n{keys}---\n")
    with pytest.raises(Refusal) as caught:
        frontmatter.parse(lines)
    assert caught.value.line == line
    assert f"line {line}:" in caught.value.message
    assert after == keys.count("\n") + 3


TEXTS = st.text(st.characters(exclude_categories=("C", "Zl", "Zp"), exclude_characters="\ufeff"), max_size=30)


@given(st.lists(TEXTS, min_size=1, max_size=5), st.sampled_from(["double", "single"]), st.booleans())
def test_any_quoted_text_comes_back_as_it_was(texts: list[str], style: str, flow: bool) -> None:
    def write(text: str) -> str:
        return json.dumps(text, ensure_ascii=False) if style == "double" else "'" + text.replace("'", "''") + "'"

    written = [write(text) for text in texts]
    lines = [f"a: [{', '.join(written)}]  # end"] if flow else ["a:", *(f"  - {text}" for text in written)]
    node = frontmatter.parse([*lines, f"b: {written[0]}"]).entries
    assert isinstance(node["a"], Sequence) and isinstance(node["b"], Scalar)
    assert [item.text for item in node["a"].items] == texts
    assert node["b"].text == texts[0]


@given(
    st.lists(st.sampled_from(["a", "b: ", ": ", "- ", "  ", "\n", "'", '"', "[", "]", ", ", "#", " #", "\\", "*", "-"]))
)
def test_no_head_breaks_the_reader(words: list[str]) -> None:
    try:
        found = frontmatter.parse("".join(words).split("\n"))
    except Refusal:
        return
    assert isinstance(found, Mapping)


# --- the file -------------------------------------------------------------------------------------


def test_a_file_that_is_no_text_is_refused_by_line() -> None:
    for data, word in ((b"---\nfeature: \xff\n---\n", "not UTF-8"), (b"---\nfeature: a\0\n---\n", "NUL")):
        with pytest.raises(Refusal) as caught:
            parse_task(data, "T-1.md")
        assert word in caught.value.message
        assert caught.value.line == 2


def test_a_file_larger_than_a_packet_is_refused() -> None:
    head = f"---\n{BASE}---\n".encode()
    assert parse_task(head + b"x" * (MAX_TASK_BYTES - len(head)), "T-1.md").feature == "F-007"
    with pytest.raises(Refusal) as caught:
        parse_task(head + b"x" * (MAX_TASK_BYTES - len(head) + 1), "T-1.md")
    assert "too large" in caught.value.message


def test_the_example_in_the_documentation_is_a_task() -> None:
    import adapters.task_file as module

    example = str(module.__doc__).split("    ---\n", 1)[1]
    lines = ["---", *(line.removeprefix("    ") for line in example.splitlines()[: example.count("\n")])]
    text = "\n".join(lines[: lines.index("---", 1) + 1]) + "\nDo it.\n"
    assert parse_task(text.encode(), Path("T-1.md").name).id == "T-012"
