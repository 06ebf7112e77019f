"""One whole unit by each real CLI, from `init` to `RUN_VERIFIED`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.clis import CLIS, Cli
from tests.e2e.conftest import Note
from tests.e2e.model_server import Run, Say
from tests.e2e.stage import VERIFICATION, assert_measured, staged
from tests.e2e.table import UNIT
from tests.e2e.wires import INPUT_TOKENS, OUTPUT_TOKENS

pytestmark = pytest.mark.e2e

ANSWER = {
    "terminal_status": "completed",
    "summary": "Added new.txt",
    "changed_files": ["new.txt"],
    "evidence": ["wrote the file"],
    "scope_expansion": None,
}
WRITES = "echo written > new.txt"


@pytest.mark.parametrize("cli", CLIS.values(), ids=CLIS)
def test_a_real_cli_does_a_whole_unit(cli: Cli, tmp_path: Path, note: Note) -> None:
    note.begin(UNIT)
    with staged(tmp_path, cli, lambda stage: [Run(WRITES), Say(json.dumps(ANSWER))]) as stage:
        ended = stage.dispatch()
        assert ended.word == "done", ended
        receipt = ended.receipt
        assert {key: receipt[key] for key in ANSWER} == ANSWER
        assert receipt["actual_route"] == cli.route
        assert receipt["usage"]["input_tokens"] == 2 * INPUT_TOKENS
        assert receipt["usage"]["output_tokens"] == 2 * OUTPUT_TOKENS
        assert_measured(receipt, cli)
        assert (receipt["failure_class"], receipt["survivors"]) == (None, 0)
        assert WRITES in ended.log

        pending = stage.step("terminalize").expect("INTEGRATION_PENDING").body
        assert pending["transport"]["changed_paths"] == ["new.txt"]
        stage.integrate(argv=VERIFICATION).expect("UNIT_COMMITTED")
        assert stage.git("show", "--format=%s", "--name-status") == "feat: U1\n\nA\tnew.txt"
        assert stage.git("status", "--porcelain") == ""
        stage.call("verify-run", "--run-id", "r1", "--", *VERIFICATION).expect("RUN_VERIFIED")
        note.end(f"committed ({receipt['confinement']})")
