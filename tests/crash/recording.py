"""Records a scenario's command in a process of its own (the recorder must be the parent of all that it watches)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from tests.crash.points import Bench
from tests.crash.power import Moment, Recorder
from tests.crash.watch import Keeper, preload

ROOT = Path(__file__).resolve().parents[2]


def record(scenario: str, base: Path) -> dict[str, Any]:
    """The journal's bytes (hex) before and during the command, its moments, and the effects that came too early."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.crash.recording", scenario, str(base / "recorded")],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    value: dict[str, Any] = json.loads(done.stdout)
    value["moments"] = [msgspec.convert(moment, Moment) for moment in value["moments"]]
    return value


def _main(scenario: str, base: Path) -> None:
    preload()
    keeper = Keeper()
    try:
        bench = Bench(scenario, base, keeper)
        bench.reset()
        path = bench.scene.run_dir() / "journal.jsonl"
        before = path.read_bytes()
        recorder = Recorder(str(path), f"{bench.scene.repo}/", len(before))
        bench.scene.watched(bench.argv, recorder)
        whole = before + recorder.data
        moments = [msgspec.to_builtins(moment) for moment in recorder.moments]
        json.dump({"journal": whole.hex(), "moments": moments, "early": recorder.early}, sys.stdout)
    finally:
        keeper.kill_everything()
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
