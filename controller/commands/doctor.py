"""`doctor`: what is not as it should be, what it means, and the one command that mends it; mends only with `--fix`."""

from __future__ import annotations

import os
from typing import Any

from controller import examination, lock, run_root
from controller.answer import Answer
from controller.errors import Blocked, ControllerError
from controller.examination import Finding
from controller.run import OpenRun, read_directory


def doctor(*, fix: bool) -> Answer:
    """Look at every run, lock, registration, ref and process of this user's runs roots."""
    findings: list[Finding] = []
    for root in run_root.lookup_roots():
        if not root.is_dir():
            continue
        findings += list(examination.runs_root(root))
        runs: list[OpenRun] = []
        for name in sorted(os.listdir(root)):
            if name.startswith("."):
                continue
            findings += list(examination.run_itself(root / name))
            try:
                runs.append(read_directory(root / name))
            except ControllerError:
                continue
        findings += list(examination.lock_files(root))
        findings += list(examination.registrations(root, runs))
        findings += list(examination.refs(runs))
        findings += list(examination.git_locks(runs))
        findings += list(examination.survivors(runs))
    report = [_view(finding) for finding in findings]
    if fix:
        root = run_root.creation_root()
        with lock.held(root / run_root.LOCKS / "runs.lock", wait=10.0, what="the runs root"):
            for finding, view in zip(findings, report, strict=True):
                _mend(finding, view)
    open_ones = [view for view in report if not view["fixed"]]
    body = {"findings": report}
    if open_ones:
        raise Blocked(
            f"{len(open_ones)} finding(s)",
            detail=body,
            expected="nothing to mend",
            found=f"{len(open_ones)} finding(s): {open_ones[0]['meaning']}",
            remedy=str(open_ones[0]["command"]),
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
