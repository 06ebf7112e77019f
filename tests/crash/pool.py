"""Several workers at once, each a process of its own, so that what runs below one is nobody else's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from tests.crash.points import Result
from tests.crash.worker import Done, Task

ROOT = Path(__file__).resolve().parents[2]


class _Line(msgspec.Struct, frozen=True):
    result: Result | None = None
    done: Done | None = None


def run(
    tasks: Sequence[Task], jobs: int, base: Path, on_result: Callable[[Result], None], on_done: Callable[[Done], None]
) -> None:
    """Do every task on `jobs` workers below `base`; the callbacks come from their threads, one at a time a worker."""
    queue: SimpleQueue[Task] = SimpleQueue()
    for task in tasks:
        queue.put(task)
    with ThreadPoolExecutor(jobs) as threads:
        for future in [threads.submit(_work, queue, base, on_result, on_done) for _ in range(jobs)]:
            future.result()


_workers: list[subprocess.Popen[bytes]] = []


def stop() -> None:
    """End every worker, and with it everything below it."""
    for worker in _workers:
        worker.terminate()
    for worker in _workers:
        worker.wait(20)


def _work(
    queue: SimpleQueue[Task], base: Path, on_result: Callable[[Result], None], on_done: Callable[[Done], None]
) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.crash.worker", str(base)],
        cwd=ROOT,
        env={**_environment(), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    _workers.append(worker)
    assert worker.stdin is not None and worker.stdout is not None
    try:
        while True:
            try:
                task = queue.get_nowait()
            except Empty:
                return
            worker.stdin.write(msgspec.json.encode(task) + b"\n")
            worker.stdin.flush()
            while True:
                text = worker.stdout.readline()
                if not text:
                    on_done(Done(task.scenario, 0, "the worker died"))
                    return
                line = msgspec.json.decode(text, type=_Line)
                if line.result is not None:
                    on_result(line.result)
                if line.done is not None:
                    on_done(line.done)
                    break
    finally:
        worker.stdin.close()
        worker.wait(60)


def _environment() -> dict[str, str]:
    import os

    return {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "CE_", "PYTHON"))}
