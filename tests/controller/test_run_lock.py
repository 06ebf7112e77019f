"""The lock of a run that goes away."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from controller import lock
from controller.errors import ControllerError


def test_a_run_that_is_removed_while_a_command_waits_for_it_is_not_made_again(tmp_path: Path) -> None:
    run = tmp_path / "r1"
    run.mkdir(mode=0o700)
    path = run / "manifest.lock"
    said: list[str] = []

    def wait() -> None:
        try:
            with lock.held(path, wait=20, what="run r1"):
                said.append("held")
        except ControllerError as error:
            said.append(error.word)

    with lock.held(path, wait=1, what="run r1"):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        run.rename(tmp_path / "gone")
    thread.join()
    wait()
    assert said == ["NOT_FOUND", "NOT_FOUND"]
    assert not run.exists()
