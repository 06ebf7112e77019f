"""`scripts/crash-sweep`: every point of every scenario, and a table of what was tried and what failed."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType

from tests.crash import plans, syscalls
from tests.crash.catalogue import SCENARIOS
from tests.crash.points import Result
from tests.crash.pool import run, stop
from tests.crash.worker import Done, Task

_KINDS = {"kills": plans.KILLS, "signals": plans.SIGNALS, "faults": plans.FAULTS, "cuts": plans.CUTS}


def main() -> int:
    """Run what the command line asks for; 1 when a point failed."""
    parser = argparse.ArgumentParser(prog="crash-sweep", description=__doc__)
    parser.add_argument("--command", help="only this command (a row of the table), or one scenario by its name")
    parser.add_argument("--kind", choices=sorted(_KINDS), help="only kills, signals, faults or power cuts")
    parser.add_argument("--plan", action="append", help="only these points, as printed: kill:tree:17")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, metavar="K", help="K points a scenario instead of all")
    parser.add_argument("--verbose", action="store_true", help="print every point")
    options = parser.parse_args()
    reason = syscalls.why_not()
    if reason is not None:
        print(f"crash-sweep: cannot run here: {reason}")
        return 2
    chosen = [s for s in SCENARIOS.values() if options.command in (None, s.command, s.name)]
    if not chosen:
        parser.error(f"no such command; there are: {', '.join(sorted({s.command for s in SCENARIOS.values()}))}")
    series = _KINDS[options.kind] if options.kind else plans.SERIES
    only = tuple(options.plan or ())
    samples = ((series, options.sample),) if options.sample else ()
    every = () if only or samples else series
    tasks = [Task(s.name, every, samples, options.seed, only) for s in chosen]
    table = Table(options.verbose)
    started = time.monotonic()
    memory = Path("/dev/shm")
    base = tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None, prefix="crash-sweep-")

    def give_up(_signum: int, _frame: FrameType | None) -> None:
        stop()
        shutil.rmtree(base, ignore_errors=True)
        table.print(time.monotonic() - started)
        os._exit(143)

    signal.signal(signal.SIGTERM, give_up)
    signal.signal(signal.SIGINT, give_up)
    try:
        run(tasks, options.jobs, Path(base), table.result, table.done)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return table.print(time.monotonic() - started)


class Table:
    """Counts as they come, failures as they come."""

    def __init__(self, verbose: bool) -> None:
        self._lock = threading.Lock()
        self._verbose = verbose
        self._tried: dict[str, dict[str, int]] = {}
        self._failed: dict[str, int] = {}
        self._finished = 0
        self._broken: list[str] = []

    def result(self, result: Result) -> None:
        """One more point."""
        command = SCENARIOS[result.scenario].command
        kind = result.plan.split(":")[0]
        with self._lock:
            row = self._tried.setdefault(command, {})
            row[kind] = row.get(kind, 0) + 1
            self._finished += result.finished
            if result.problems:
                self._failed[command] = self._failed.get(command, 0) + 1
            if result.problems or self._verbose:
                print(f"{result.scenario} {result.plan} [{result.struck}] {result.answer}", flush=True)
            for problem in result.problems:
                print(f"    {problem if self._verbose else problem[:400]}", flush=True)

    def done(self, done: Done) -> None:
        """One scenario is through."""
        with self._lock:
            if self._verbose or sys.stderr.isatty():
                print(f"{done.scenario}: {done.effects} effects, done", file=sys.stderr, flush=True)
            if done.error:
                self._broken.append(done.scenario)
                print(f"{done.scenario}: the undisturbed story fails: {done.error}", flush=True)

    def print(self, seconds: float) -> int:
        """The table; 1 when anything failed."""
        kinds = ("kill", "signal", "fail", "short", "cut")
        print(f"\n{'command':<22}{''.join(f'{kind:>9}' for kind in kinds)}{'points':>9}{'failed':>9}")
        for command in sorted(self._tried):
            row = self._tried[command]
            cells = "".join(f"{row.get(kind, 0):>9}" for kind in kinds)
            print(f"{command:<22}{cells}{sum(row.values()):>9}{self._failed.get(command, 0):>9}")
        tried = sum(sum(row.values()) for row in self._tried.values())
        failed = sum(self._failed.values())
        totals = "".join(f"{sum(row.get(kind, 0) for row in self._tried.values()):>9}" for kind in kinds)
        print(f"{'all':<22}{totals}{tried:>9}{failed:>9}")
        print(f"{self._finished} different states driven to the end, {seconds:.0f} s")
        if self._broken:
            print(f"scenarios whose undisturbed story fails: {', '.join(self._broken)}")
        return 1 if failed or self._broken else 0


if __name__ == "__main__":
    sys.exit(main())
