"""`explain`: what a word, a state or a refusal means, and what to do."""

from __future__ import annotations

import difflib
import os
import re
from typing import Any

from controller import catalog, machine
from controller.answer import Answer
from controller.catalog import Entry
from controller.errors import ControllerError, Refused

SUCCESS_WORDS = {
    "READY": "the run exists: made now, or (resumed) made before from the same source, binding and egress",
    "CHECKPOINTED": "the selected plan is committed, and nothing else",
    "NOOP": "nothing had to be committed",
    "PREPARED": "the attempt has packet, authorization and workspace; `next` holds the runner call that dispatches it",
    "AUTHORIZED": "the adapter may hand the packet to the recipient; its job is bound to the attempt",
    "AUTHORING": "the job is bound to the attempt; wait for it",
    "SYNCED": "what the runner's files say of the job is recorded",
    "INTEGRATION_PENDING": "the worker's output passed the gate and is pinned as a transport commit: look at it",
    "ACQUIRED": "the run holds the branch's integration lock; the token is needed for every manual step",
    "PREFLIGHT_OK": "the transport can be applied; nothing was touched; what the apply must produce is recorded",
    "APPLIED": "the transport is applied, exactly and alone",
    "VERIFIED": "the host's verification of exactly what is applied is recorded",
    "COMMITTED": "the unit's one canonical commit is recorded; clean up, then release the lock",
    "UNIT_COMMITTED": "applied, verified, committed, cleaned up, lock released",
    "WAVE_ADVANCED": "later members of the wave may be applied on the new commit",
    "PRESERVED": "the checkout is what it was before the apply, proven; what was not in Git is in the run's recovered/",
    "RUN_VERIFIED": "the plan-wide verification passed on the finished branch; its receipt is recorded",
    "STATUS": "what the journal says; `repository` names a problem of the checkout",
    "RUNS": "every run of the runs roots; one that cannot be read is listed with its problem",
    "RESUMED": "the run is where a legal next step exists; `actions` says what was done for which unit",
    "FALLBACK_AUTHORIZED": "the unit may be implemented natively, once; commit it, then complete-fallback",
    "FALLBACK_ALREADY_AUTHORIZED": "a native implementation was authorized before: do not start a second one",
    "FALLBACK_COMPLETED": "the native implementation at HEAD is accepted for the unit",
    "REAPED": "the job and its processes have ended; how is recorded",
    "CLEANED": "workspace, transport ref and job are gone; the evidence is kept until gc",
    "RELEASED": "the integration lock is free",
    "HEALTHY": "doctor found nothing, or --fix mended all of it",
    "EXPLAINED": "the text is known; this is what it means",
    "COLLECTED": "these finished runs were removed",
    "WOULD_COLLECT": "these finished runs would go with --yes; nothing was removed",
    "TASK": "the task file is valid; what it resolves to, and the commands that begin it",
    "INSTALLED": "the three drop-in entry points were written",
    "JOURNAL_OK": "every record of the journal has the right shape, hash, chain and order",
}

UNIT_STATES = {
    "queued": "packet, authorization and workspace are prepared; no job is bound",
    "authoring": "a job is bound to the attempt; its worker works, or has ended and was not terminalized",
    "authored": "the worker's result is valid; its output is not pinned (it is blocked, or did not pass the gate)",
    "integration-pending": "the output is pinned as a transport commit and waits for its integration",
    "integrated": "the transport is applied to the canonical checkout, under the integration lock",
    "verified": "what is applied passed its verification; it is not committed",
    "committed": "the unit's commit is in the branch; the unit is not cleaned up",
    "restoring": "a restoration of the checkout began and its end is not recorded",
    "preserved": "the checkout was restored exactly; transport and workspace are kept",
    "cleaned": "committed, or abandoned, and cleaned up",
    "native-completed": "implemented natively through claim-fallback, and accepted",
}

PROCESS_STATES = {
    "never-started": "no supervisor ever ran the job, or there is no job",
    "running": "the runner's files hold no outcome yet; `contact` says whether its supervisor lives",
    "done": "the worker ended well and published a result; terminalize it",
    "failed": "the worker ended badly; its receipt says how",
    "timeout": "the idle or hard limit, or a reap, ended the worker",
    "died-without-result": "the worker was killed before it published a result",
}

_SHOWN = 5


def explain(*, text: str) -> Answer:
    """Explain a status word, a unit state, a process state, or the text of a refusal (a whole line will do)."""
    line = _message(text)
    found = _word(line) or _state(line) if line.isupper() else _state(line) or _word(line)
    return found or _refusal(line)


def vocabulary() -> Answer:
    """Every word, unit state and process state with its meaning."""
    refusals = {cls.word: _meaning(cls) for cls in ControllerError.__subclasses__()}
    return Answer(
        "EXPLAINED",
        {
            "subject": None,
            "kind": "vocabulary",
            "words": {**SUCCESS_WORDS, **refusals},
            "unit_states": UNIT_STATES,
            "process_states": PROCESS_STATES,
        },
    )


def _meaning(cls: type[ControllerError]) -> str:
    return " ".join((cls.__doc__ or "").split())


def _word(text: str) -> Answer | None:
    word = text.upper().replace("-", "_")
    for cls in ControllerError.__subclasses__():
        if cls.word == word:
            to_do = f"read the line on standard error, which says what was found; usually: {cls.usual_remedy}"
            return _answer(word, "word", exit_code=cls.exit_code, meaning=_meaning(cls), remedy=to_do)
    if word in SUCCESS_WORDS:
        return _answer(word, "word", exit_code=0, meaning=SUCCESS_WORDS[word])
    return None


def _state(text: str) -> Answer | None:
    """`committed` is a state, `COMMITTED` the word that an answer begins with."""
    state = text.lower().replace("_", "-")
    if state in UNIT_STATES:
        return _answer(state, "unit state", meaning=UNIT_STATES[state], commands=list(machine.triggers(state)))
    if state in PROCESS_STATES:
        return _answer(state, "process state", meaning=PROCESS_STATES[state])
    return None


def _answer(subject: str, kind: str, **more: Any) -> Answer:
    return Answer("EXPLAINED", {"subject": subject[:200], "kind": kind, **more})


def _message(text: str) -> str:
    """The message of a line of standard error: without the program's name, and without the hints that follow it."""
    line = " ".join(text.split()).removeprefix("unit-workspace: ")
    return re.split(r"; (?:expected|found|to do:?) ", line)[0]


def _refusal(text: str) -> Answer:
    known = catalog.entries()
    found = sorted((entry for entry in known if entry.matches(text)), key=Entry.weight, reverse=True)
    if found:
        found = [entry for entry in found if entry.weight() == found[0].weight()]
    else:
        found = sorted((entry for entry in known if entry.contains(text)), key=Entry.weight, reverse=True)
    if not found:
        found = [_of_the_system(entry, text) for entry in known if _is_of_the_system(entry, text)]
    if not found:
        near = difflib.get_close_matches(text, [entry.message for entry in known], n=3, cutoff=0.5)
        raise Refused(
            f"nothing known about {text[:200]!r}",
            detail={"nearest": near},
            expected="a word, a state, or the text of a refusal",
            found=text[:200],
            remedy="pass the line that followed `unit-workspace:` on standard error, in quotes",
        )
    return _answer(text, "refusal", refusals=[_view(entry) for entry in found[:_SHOWN]])


def _is_of_the_system(entry: Entry, text: str) -> bool:
    """Whether the text is an error of the operating system (`No space left on device: …`), and this entry speaks it."""
    return entry.context.startswith("A failed system call") and any(
        text.startswith(os.strerror(number)) for number in range(1, 134)
    )


def _of_the_system(entry: Entry, text: str) -> Entry:
    return Entry(entry.word, text[:200], entry.expected, entry.remedy, entry.context)


def _view(entry: Entry) -> dict[str, Any]:
    return {
        "word": entry.word,
        "message": entry.message,
        "expected": entry.expected or None,
        "remedy": entry.remedy or None,
        "rule": entry.context,
    }
