"""`doctor`: what is not as it should be, what it means, and the one command that mends it; mends only with `--fix`."""

from __future__ import annotations

import os
from typing import Any

from controller import examination, examination_git, run_root
from controller.answer import Answer
from controller.errors import Blocked, ControllerError
from controller.examination import Finding


def doctor(*, fix: bool) -> Answer:
    """Look at every run, lock, registration, ref and process of this user's runs roots.

    `HEALTHY` when nothing is left to mend, `BLOCKED` otherwise. `findings`: check, where, meaning, command, whether
    `--fix` mends it and whether it did. `notes`: what may well be somebody else's. `busy`: runs that another command
    works on, which were not looked at.
    """
    findings: list[Finding] = []
    notes: list[Finding] = []
    busy: list[str] = []
    for root in run_root.lookup_roots():
        if not os.path.lexists(root):
            continue
        wrong = examination.no_runs_root(root)
        if wrong is not None:
            findings.append(wrong)
            continue
        findings += list(examination.leftovers(root))
        examined = examination.look(root, findings)
        busy += examined.busy
        findings += list(examination.lock_files(examined))
        findings += list(examination_git.registrations(examined, notes))
        findings += list(examination_git.refs(examined, notes))
        findings += list(examination_git.shelves(examined))
        findings += list(examination.missing_workspaces(examined))
        findings += list(examination_git.git_locks(examined))
        findings += list(examination.survivors(examined))
        if fix and any(finding.repair for finding in findings):
            run_root.ensure_root(root)  # for the locks that a repair takes
    report = [_view(finding) for finding in findings]
    if fix:
        for finding, view in zip(findings, report, strict=True):
            _mend(finding, view)
    open_ones = [view for view in report if not view["fixed"]]
    body = {"findings": report, "notes": [_view(note) for note in notes], "busy": busy}
    if open_ones:
        first = open_ones[0]
        raise Blocked(
            f"{len(open_ones)} finding(s) of doctor are open",
            detail=body,
            expected="nothing to mend",
            found=f"{first['check']} {first['where']}: {first['meaning']}",
            remedy=str(first["command"]),
        )
    return Answer("HEALTHY", body)


def _view(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "where": finding.where,
        "meaning": finding.meaning,
        "command": finding.command,
        "fixable": finding.repair is not None,
        "fixed": False,
    }


def _mend(finding: Finding, view: dict[str, Any]) -> None:
    if finding.repair is None:
        return
    try:
        finding.repair()
        view["fixed"] = True
    except ControllerError as error:
        view["problem"] = error.message
    except OSError as error:
        view["problem"] = run_root.disk_error(error).message
