"""What can be known of each real CLI before anything is sent: it takes our flags, and no model is asked."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.e2e.clis import CLIS, Cli
from tests.e2e.conftest import Note
from tests.e2e.stage import staged
from tests.e2e.table import PREFLIGHT

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("cli", CLIS.values(), ids=CLIS)
def test_the_pinned_release_knows_our_flags_and_says_so_without_egress(cli: Cli, tmp_path: Path, note: Note) -> None:
    note.begin(PREFLIGHT)
    with staged(tmp_path, cli, lambda stage: []) as stage:
        program = os.path.join(os.path.dirname(sys.executable), "cross-model-work")
        model = ["--model", cli.model] if cli.model is not None else []
        told = json.loads(stage.tool([program, "preflight", "--route", cli.route, *model]))
        assert told["available"] is True, told
        assert told["flags"] == {"status": "ok", "missing": []}
        assert cli.version in told["version"]
        assert told["restrictions"]["confinement"] in cli.confined
        assert told["restrictions"]["enforced"] is True
        assert stage.model.requests == []
        note.end("available")
