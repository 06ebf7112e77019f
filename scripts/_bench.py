"""Counts and times of every transition, on four repositories; with --against, of two folders of scripts.

Times are medians of three bare passes; Git processes and fsyncs come from passes of their own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from _bench_meter import BenchError, Figures, Meter
from _bench_passes import Programs, end_jobs, fake_cli, latencies, transitions
from _bench_repos import Shape, make, shapes
from rich.console import Console
from rich.table import Table

SCRIPTS = Path(__file__).resolve().parent
PREFIXES = ("CE_WORK_", "CE_PEER_", "CROSS_MODEL_", "UNIT_WORKSPACE_", "GIT_")
Rows = dict[str, Figures]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--against", type=Path, metavar="DIR", help="a folder with the three scripts to compare with")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes, times from one pass")
    options = parser.parse_args()
    folders = [SCRIPTS, *([options.against.resolve()] if options.against else [])]
    for folder in folders:
        if not (folder / "unit-workspace.py").is_file():
            print(f"bench: {folder} holds no unit-workspace.py", file=sys.stderr)
            return 2
    console = Console(width=None if sys.stdout.isatty() else 120)
    work = Path(tempfile.mkdtemp(prefix="unit-workspace-bench-"))
    try:
        for shape in shapes(quick=options.quick):
            results = [_measure(shape, folder, work, 1 if options.quick else 3) for folder in folders]
            console.print(_table(shape, results))
        results = [_measure_runner(folder, work, 1 if options.quick else 3) for folder in folders]
        console.print(_table(Shape("the runner", 0, 0, 0), results))
    except BenchError as error:
        print(f"bench: stopped: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
    finally:
        end_jobs(work, folders)
        shutil.rmtree(work, ignore_errors=True)
    return 0


def _room(work: Path) -> tuple[Meter, Path]:
    """A fresh folder with roots and tools of its own, and a meter whose commands see only these."""
    room = Path(tempfile.mkdtemp(dir=work))
    (room / "tools").mkdir()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    env = {
        **inherited,
        "PATH": f"{room / 'tools'}:{inherited.get('PATH', os.defpath)}",
        "CE_WORK_RUNS_ROOT": str(room / "runs"),
        "CE_PEER_JOBS_ROOT": str(room / "jobs"),
        "CE_PEER_IDLE_SECS": "0",
    }
    return Meter(env, room), room


def _measure(shape: Shape, folder: Path, work: Path, repeats: int) -> Rows:
    meter, room = _room(work)
    times = fake_cli(room / "tools")
    make(shape, room / "repo")
    for number, mode in enumerate(["time"] * repeats + meter.modes):
        meter.mode = mode
        transitions(meter, Programs(folder), room / "repo", room, number, times)
    shutil.rmtree(room, ignore_errors=True)
    return meter.rows


def _measure_runner(folder: Path, work: Path, repeats: int) -> Rows:
    meter, room = _room(work)
    for _ in range(repeats):
        latencies(meter, Programs(folder), room)
    return meter.rows


def _table(shape: Shape, results: list[Rows]) -> Table:
    table = Table(title=shape.name, title_justify="left", title_style="bold")
    table.add_column("transition", no_wrap=True)
    headings = ["", "theirs", "ratio"] if len(results) > 1 else [""]
    for what in ("ms", "git", "fsync"):
        for heading in headings:
            table.add_column(f"{what} {heading}".strip(), justify="right")
    for row in results[0]:
        figures = [rows.get(row, Figures()) for rows in results]
        milliseconds = [None if one.median is None else one.median * 1000 for one in figures]
        cells = [*_cells(milliseconds), *_cells([one.git for one in figures])]
        if shutil.which("strace"):
            cells += _cells([one.fsyncs for one in figures])
        else:
            cells += ["no strace"] * len(headings)
        table.add_row(row, *cells)
    return table


def _cells(values: list[float | None] | list[int | None]) -> list[str]:
    """The figures of one kind, and with two folders their ratio."""
    cells = ["–" if value is None else f"{value:.0f}" for value in values]
    if len(values) > 1:
        ours, theirs = values[0], values[1]
        cells.append("–" if not ours or theirs is None else f"{theirs / ours:.1f}")
    return cells


if __name__ == "__main__":
    sys.exit(main())
