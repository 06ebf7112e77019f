"""`explain` knows every word, every state, and every refusal that the code can speak, also as a whole line."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller import catalog, machine
from controller.catalog import Entry
from controller.commands.explain import PROCESS_STATES, SUCCESS_WORDS, UNIT_STATES, explain
from controller.errors import ControllerError, Refused
from runner.verdict import State
from tests.controller.quick import QuickHost
from tests.host import Reply
from tests.lane import Lane

ENTRIES = catalog.entries()
FILLINGS = ("/a/path; with: blanks", "é")


@pytest.fixture
def host(tmp_path: Path, lane: Lane) -> QuickHost:
    """A host with run `r1`."""
    made = QuickHost(tmp_path, lane)
    made.make_repo()
    made.init().expect("READY")
    return made


def refusals(text: str) -> list[dict[str, Any]]:
    """What explain says of the text of a refusal."""
    body = explain(text=text).body
    assert body["kind"] == "refusal", body
    found: list[dict[str, Any]] = body["refusals"]
    return found


# --- refusals ----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True, scope="module")
def _read_once() -> Iterator[None]:
    """The catalogue is read from the source at each call, which is a second of hundreds of cases."""
    patch = pytest.MonkeyPatch()
    patch.setattr(catalog, "entries", lambda: ENTRIES)
    yield
    patch.undo()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: re.sub(r"[^A-Za-z0-9 ]+", "", entry.message)[:60])
def test_every_refusal_in_the_code_is_explained(entry: Entry) -> None:
    for number, filling in enumerate(FILLINGS):
        message = entry.message
        while "…" in message:
            message = message.replace("…", filling, 1)
        line = message if number % 2 else f"unit-workspace: {message}; expected one; found two; to do: three"
        found = refusals(line)
        assert entry.message in [item["message"] for item in found] or found[0]["message"] == message[:200], found
        best = next((item for item in found if item["message"] == entry.message), found[0])
        assert best["word"] in ("REFUSED", "BLOCKED", "AMBIGUOUS", "NOT_FOUND", "INTERRUPTED", "UNREADABLE")
        assert best["rule"]


def test_no_refusal_of_the_code_is_missing_from_the_catalogue() -> None:
    """Each place that raises has a text that can be recognised, but for those that only pass on another's."""
    passed_on = {"refusal['message']", "str(fault)", "str(error)", "worst.message"}
    known = {(entry.word, entry.message) for entry in ENTRIES}
    missing = []
    for path in catalog.sources():
        module = catalog._Module(ast.parse(path.read_text()))
        for name, word in catalog._WORDS.items():
            for call, function in module.calls.get(name, []):
                if not call.args or ast.unparse(call.args[0]) in passed_on:
                    continue
                scopes = [catalog._Scope(module, function, {}, 4)]
                if function is not None:
                    scopes += [
                        catalog._Scope(module, function, given, 4) for given in catalog._callers(module, function, 4)
                    ]
                texts = [text for scope in scopes for text in scope.texts(call.args[0])]
                if not any((word, text) in known for text in texts):
                    missing.append(f"{path.name}:{call.lineno} {texts}")
    assert missing == []


def test_a_part_of_a_refusal_is_enough() -> None:
    assert refusals("clean canonical checkout")[0]["word"] == "BLOCKED"
    assert any("queue" in (item["remedy"] or "") for item in refusals("branch is being integrated"))


def test_an_error_of_the_operating_system_says_what_to_do() -> None:
    found = refusals("No space left on device: /somewhere/private")
    assert (found[0]["word"], "free space" in found[0]["remedy"]) == ("BLOCKED", True)


def test_without_a_text_every_word_and_state_is_listed_and_quotes_are_not_needed(host: QuickHost) -> None:
    body = host.call("explain").expect("EXPLAINED").body
    for kind in ("words", "unit_states", "process_states"):
        for name, meaning in body[kind].items():
            assert host.call("explain", name).expect("EXPLAINED").body["meaning"] == meaning
    assert host.call("explain", "clean", "canonical", "checkout").body["refusals"][0]["word"] == "BLOCKED"


def test_what_nobody_says_is_refused_with_what_comes_near(host: QuickHost) -> None:
    reply = host.call("explain", "requires a clean kanonical chekout").expect("REFUSED")
    assert "requires a clean canonical checkout" in reply.body["nearest"]
    host.call("explain", "").expect("REFUSED")
    assert "nothing known" in host.call("explain", "zzz", "qqq").expect("REFUSED").stderr
    with pytest.raises(Refused):
        explain(text="zzz qqq")


# --- lines that were really printed --------------------------------------------------------------------------------------


def _unit(host: QuickHost, *argv: str, unit: str = "U1") -> Reply:
    return host.call(argv[0], "--run-id", "r1", "--unit-id", unit, *argv[1:])


def _dirty(host: QuickHost) -> Reply:
    (host.repo / "f").write_text("mine\n")
    return host.prepare("U1")


def _in_the_way(host: QuickHost) -> Reply:
    host.pending("U1", {"secret.txt": "x\n"})
    (host.repo / ".git" / "info" / "exclude").write_text("secret.txt\n")
    (host.repo / "secret.txt").write_text("mine\n")
    return host.integrate("U1")


def _other_branch(host: QuickHost) -> Reply:
    host.git("checkout", "-qb", "other")
    return host.prepare("U1")


def _bad_result(host: QuickHost) -> Reply:
    prepared = host.author("U1")
    host.write_result(prepared, actual_route="claude")
    return _unit(host, "terminalize")


def _open_journal(host: QuickHost) -> Reply:
    (host.run_dir() / "journal.jsonl").chmod(0o644)
    return host.call("status", "--run-id", "r1")


def _open_run(host: QuickHost) -> Reply:
    host.run_dir().chmod(0o755)
    return host.call("doctor")


def _damaged_journal(host: QuickHost) -> Reply:
    path = host.run_dir() / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-3] + b"!}\n")
    return host.call("status", "--run-id", "r1")


def _moved_head(host: QuickHost) -> Reply:
    host.pending("U1")
    host.git("commit", "-q", "--allow-empty", "-m", "mine")
    return host.integrate("U1")


SPOKEN: dict[str, Callable[[QuickHost], Reply]] = {
    "dirty checkout": _dirty,
    "other branch": _other_branch,
    "ignored file in the way": _in_the_way,
    "unknown run": lambda host: host.call("status", "--run-id", "nope"),
    "unknown unit": lambda host: _unit(host, "sync-job", unit="U9"),
    "unsafe id": lambda host: host.call("status", "--run-id", "../x"),
    "wrong state": lambda host: (host.prepare("U1"), _unit(host, "integrate", "--commit-message", "m", "--", "true"))[
        1
    ],
    "no verification command": lambda host: (
        host.prepare("U1"),
        _unit(host, "integrate", "--commit-message", "m"),
    )[1],
    "wrong token": lambda host: (host.pending("U1"), _unit(host, "preflight", "--lock-token", "f" * 48))[1],
    "wrong expectation": lambda host: (
        host.pending("U1"),
        _unit(host, "cleanup", "--abandon", "--expect-transport", "e" * 40),
    )[1],
    "no claim": lambda host: (
        host.prepare("U1"),
        _unit(host, "complete-fallback", "--accepted-head", "a" * 40, "--evidence-digest", "a" * 64, "--summary", "s"),
    )[1],
    "failed verification": lambda host: (host.pending("U1"), host.integrate("U1", ("false",)))[1],
    "missing program": lambda host: (host.pending("U1"), host.integrate("U1", ("/nowhere/at/all",)))[1],
    "moved HEAD": _moved_head,
    "wrong route": _bad_result,
    "open journal": _open_journal,
    "damaged journal": _damaged_journal,
    "nothing accepted": lambda host: host.call("verify-run", "--run-id", "r1", "--", "true"),
    "other binding": lambda host: host.init(
        binding={"mode": "require", "target": "codex", "model": None, "source": "t"}
    ),
    "unknown route": lambda host: host.init("r2", egress={"route": "nope", "intermediaries": []}),
    "no such job": lambda host: (
        host.prepare("U1"),
        _unit(host, "record-job", "--attempt-id", "attempt-1", "--job-id", "none"),
    )[1],
    "doctor": _open_run,
}


@pytest.mark.parametrize("name", SPOKEN)
def test_a_line_that_was_really_printed_is_explained_by_the_word_that_came_with_it(host: QuickHost, name: str) -> None:
    reply = SPOKEN[name](host)
    assert reply.code in (1, 4), repr(reply)
    found = refusals(reply.stderr.strip())
    assert reply.word in [item["word"] for item in found], found
    if name == next(iter(SPOKEN)):
        answer = host.call("explain", reply.stderr.strip()).expect("EXPLAINED")
        assert answer.body["refusals"] == found


# --- words and states ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ControllerError.__subclasses__(), ids=lambda cls: cls.word)
def test_every_refusal_word_is_explained_with_its_exit_code(cls: type[ControllerError]) -> None:
    for text in (cls.word, cls.word.lower(), cls.word.replace("_", "-"), f" {cls.word} "):
        body = explain(text=text).body
        assert (body["kind"], body["exit_code"]) == ("word", cls.exit_code)
        assert len(body["meaning"]) > 20


def test_every_word_that_a_command_answers_is_explained() -> None:
    """The words are read from the code: a new one must be explained, and none may be explained that is not there."""
    spoken = set()
    for path in catalog.sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Answer":
                spoken |= {part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)}
    assert spoken <= set(SUCCESS_WORDS)
    assert set(SUCCESS_WORDS) - spoken <= {"WAVE_ADVANCED"}
    for word in spoken:
        assert isinstance(word, str)
        body = explain(text=word).body
        assert (body["kind"], body["exit_code"]) == ("word", 0)


def test_every_unit_state_is_explained_with_its_commands() -> None:
    assert set(UNIT_STATES) == set(machine.STATES)
    for state in machine.STATES:
        body = explain(text=state).body
        assert (body["kind"], body["commands"]) == ("unit state", list(machine.triggers(state)))
        assert len(body["meaning"]) > 10


def test_every_process_state_is_explained() -> None:
    assert set(PROCESS_STATES) == {state.value for state in State} - {"unreadable"}
    for state in PROCESS_STATES:
        assert explain(text=state).body["kind"] == "process state"
