"""`explain`: what a word, a state or a refusal means, and what to do."""

from __future__ import annotations

import difflib
from typing import Any

from controller import catalog, machine
from controller.answer import Answer
from controller.errors import ControllerError, Refused

PROCESS_STATES = {
    "never-started": "a job directory exists, but no supervisor ever ran",
    "running": "the runner's files hold no outcome yet; `contact` says whether its supervisor lives",
    "done": "the worker ended well and published a result; terminalize it",
    "failed": "the worker ended badly; its receipt says how",
    "timeout": "the idle or hard limit, or a reap, ended the worker",
    "died-without-result": "the worker was killed before it published a result",
}


def explain(*, text: str) -> Answer:
    """Explain a status word, a unit state, a process state, or the text of a refusal."""
    word = text.strip().upper().replace("-", "_")
    for cls in ControllerError.__subclasses__():
        if cls.word == word:
            body = {"subject": word, "kind": "word", "exit_code": cls.exit_code, "meaning": (cls.__doc__ or "").strip()}
            return Answer("EXPLAINED", body)
    state = text.strip().lower()
    if state in machine.STATES:
        body = {"subject": state, "kind": "unit state", "commands": list(machine.triggers(state))}
        return Answer("EXPLAINED", body)
    if state in PROCESS_STATES:
        return Answer("EXPLAINED", {"subject": state, "kind": "process state", "meaning": PROCESS_STATES[state]})
    return _refusal(text)


def _refusal(text: str) -> Answer:
    known = catalog.entries()
    exact = sorted((entry for entry in known if entry.matches(text)), key=lambda entry: -len(entry.message))
    part = [entry for entry in known if text.strip().lower() in entry.message.lower()] if len(text.strip()) > 3 else []
    found = exact[:1] or part[:5]
    if not found:
        near = difflib.get_close_matches(text, [entry.message for entry in known], n=3, cutoff=0.5)
        raise Refused(
            f"nothing known about {text[:200]!r}",
            detail={"nearest": near},
            expected="a word, a state, or the text of a refusal",
            found=text[:200],
            remedy="pass the line that followed `unit-workspace:` on standard error, in quotes",
        )
    refusals: list[dict[str, Any]] = [
        {
            "word": entry.word,
            "message": entry.message,
            "expected": entry.expected or None,
            "remedy": entry.remedy or None,
            "rule": entry.context,
        }
        for entry in found
    ]
    return Answer("EXPLAINED", {"subject": text.strip()[:200], "kind": "refusal", "refusals": refusals})
