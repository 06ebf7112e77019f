"""Each way in which a model can fail a real CLI: the receipt says which, and nothing of the user's was touched."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.clis import CLIS, Cli
from tests.e2e.conftest import Note
from tests.e2e.model_server import Hang, Run
from tests.e2e.refusals import FAILURES, Failure
from tests.e2e.stage import Ended, Stage, assert_measured, staged, until
from tests.e2e.table import HANG
from tests.e2e.wires import INPUT_TOKENS, OUTPUT_TOKENS

pytestmark = pytest.mark.e2e

HALF_DONE = "echo half > new.txt; echo half-$((20 + 2))-done"
SEEN = "half-22-done"
IDLE_SECONDS = {"codex": "30", "claude": "30", "opencode": "90"}
"""More than each CLI needs on a busy machine until it says its first word."""


def assert_given_up(stage: Stage, ended: Ended) -> None:
    """The attempt can be given up, and its evidence outlives it."""
    attempt = stage.prepared["attempt_id"]
    stage.step("cleanup", "--abandon", "--expect-job", ended.job).expect("CLEANED")
    assert not stage.result_dir.exists()
    evidence = stage.run_dir() / "evidence" / "U1" / attempt
    kept = {path.name: path.read_text(errors="replace") for path in evidence.rglob("*") if path.is_file()}
    assert kept["adapter.log"] == ended.log
    assert json.loads(kept["implementation-result.json"]) == ended.receipt


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_a_failing_model_gives_a_classed_receipt_and_leaves_the_checkout_alone(
    failure: Failure, tmp_path: Path, note: Note
) -> None:
    note.begin(failure.name)
    with staged(tmp_path, failure.cli, lambda stage: [Run(HALF_DONE), failure.step()]) as stage:
        before = stage.fingerprint()
        ended = stage.dispatch()
        assert ended.word == "failed", ended
        receipt = ended.receipt
        told = (receipt["terminal_status"], receipt["failure_class"], receipt["failure_detail"])
        assert told == ("failed", failure.failure_class, failure.detail), json.dumps(receipt, indent=2)
        assert re.search(failure.evidence, receipt["failure_evidence"]), receipt["failure_evidence"]
        after = receipt["retry_after_seconds"]
        if failure.retry_after is None:
            assert after is None
        else:
            assert failure.retry_after[0] <= after <= failure.retry_after[1]
        assert_measured(receipt, failure.cli)
        if failure.measured:
            assert receipt["usage"]["input_tokens"] == INPUT_TOKENS
            assert receipt["usage"]["output_tokens"] == OUTPUT_TOKENS
        else:
            assert receipt["usage"] is None
        assert SEEN in ended.log
        assert stage.fingerprint() == before
        assert_given_up(stage, ended)
        assert stage.fingerprint() == before
        detail = f" ({failure.detail})" if failure.detail else ""
        note.end(failure.failure_class + detail)


@pytest.mark.parametrize("cli", CLIS.values(), ids=CLIS)
def test_a_model_that_hangs_is_ended_by_the_runners_limit_and_the_log_so_far_survives(
    cli: Cli, tmp_path: Path, note: Note
) -> None:
    note.begin(HANG)
    with staged(tmp_path, cli, lambda stage: [Run(HALF_DONE), Hang()]) as stage:
        before = stage.fingerprint()
        job = stage.begin(CE_PEER_IDLE_SECS=IDLE_SECONDS[cli.route])
        until(lambda: SEEN in stage.log, "the worker's output in the log while it runs")
        assert stage.runner("status", "--skill", "ce-work", job) == "running"
        assert stage.processes() != []
        ended = stage.finish(job)
        assert ended.word == "timeout", ended
        assert stage.processes_soon_gone()
        receipt = ended.receipt
        told = (receipt["terminal_status"], receipt["failure_class"], receipt["failure_detail"])
        assert told == ("failed", "timeout", "interrupted"), json.dumps(receipt, indent=2)
        assert "signal 15" in receipt["failure_reason"]
        assert_measured(receipt, cli)
        assert SEEN in ended.log
        assert stage.fingerprint() == before
        assert_given_up(stage, ended)
        note.end("timeout (by the runner)")
