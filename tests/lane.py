"""The real controller as one process a command, without paying its imports every time.

`python -m tests.lane` has loaded the controller and forks for each request; the child runs the command as
`python -m controller` would, and can be killed at any moment. `Lane` is the test's side: one command at a time; two
lanes run two commands at once. `shared` is the one that every `Host` of this process uses.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.process import ProcessIdentity, descendants, identify, is_alive
from tests.reply import Reply

if TYPE_CHECKING:
    from tests.host import Host

ROOT = Path(__file__).resolve().parents[1]


class Running:
    """A started command."""

    def __init__(self, lane: Lane, argv: list[str], pid: int, out: Path, err: Path) -> None:
        self.argv = argv
        self.pid = pid
        self._lane = lane
        self._out = out
        self._err = err
        self.fd = -1
        with suppress(ProcessLookupError):  # it may have ended already
            self.fd = os.pidfd_open(pid)

    def kill(self, *, tree: bool) -> None:
        """SIGKILL to the controller, or to it and everything below it; wait until nothing of it writes any more."""
        below = descendants(self.pid) if self.fd >= 0 else []
        with suppress(ProcessLookupError):
            if self.fd >= 0:
                signal.pidfd_send_signal(self.fd, signal.SIGKILL)
        if tree:
            for identity in below:
                with suppress(ProcessLookupError):
                    os.kill(identity.pid, signal.SIGKILL) if is_alive(identity) else None
        deadline = time.monotonic() + 20
        while any(is_alive(identity) for identity in below):
            assert time.monotonic() < deadline, below
            time.sleep(0.002)

    def wait(self) -> int:
        """The raw wait status."""
        status = self._lane.status()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        return status

    def reply(self) -> Reply:
        """Its answer."""
        code = os.waitstatus_to_exitcode(self.wait())
        out, err = (path.read_bytes() for path in (self._out, self._err))
        for path in (self._out, self._err):
            path.unlink()
        return Reply(subprocess.CompletedProcess(self.argv, code, out, err))


class Lane:
    """A process that forks one controller command at a time."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.lane"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=base,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def start(self, host: Host, *argv: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Running:
        """Start a command of this host, with the umask of now."""
        self._count += 1
        out, err = self._base / f"{self._count}.out", self._base / f"{self._count}.err"
        mask = os.umask(0)
        os.umask(mask)
        request = {
            "argv": argv,
            "env": {**host.env, "PYTHONPATH": str(ROOT), **(env or {})},
            "cwd": str(cwd or host.base),
            "umask": mask,
            "out": str(out),
            "err": str(err),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        return Running(self, list(argv), int(self._line()), out, err)

    def status(self) -> int:
        """The wait status of the command that was started last."""
        return int(self._line())

    def identity(self) -> ProcessIdentity | None:
        """The server's process."""
        return identify(self._process.pid)

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            byte = self._process.stdout.read(1)
            assert byte, "the server has died"
            line += byte
        return line

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


_shared: list[Lane] = []


def shared() -> Lane:
    """The lane of this test process."""
    if not _shared:
        base = Path(tempfile.mkdtemp(prefix="lane-"))
        _shared.append(Lane(base))
        atexit.register(shutil.rmtree, base, ignore_errors=True)
        atexit.register(_shared[0].close)
    return _shared[0]


# --- the server's side ------------------------------------------------------------------------------------------------


def _load() -> Callable[[], None]:
    """Import what any command may need; the entry point."""
    for package in ("controller", "runner", "adapters"):
        module = importlib.import_module(package)
        for found in pkgutil.walk_packages(module.__path__, f"{package}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    for name in ("filelock", "transitions", "msgspec.json"):
        importlib.import_module(name)
    return importlib.import_module("controller.cli").main  # type: ignore[no-any-return]


def _child(main: Callable[[], None], request: dict[str, Any], inherited: tuple[int, ...]) -> None:
    code = 1
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        for target, place in ((1, request["out"]), (2, request["err"])):
            fd = os.open(place, flags, 0o600)
            os.dup2(fd, target)
            os.close(fd)
        fd = os.open(os.devnull, os.O_RDONLY)
        os.dup2(fd, 0)
        for number in {fd, *inherited} - {0}:
            os.close(number)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        os.umask(request["umask"])
        sys.argv = ["unit-workspace", *request["argv"]]
        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    """Answer each request on standard input with the child's pid, then with its wait status."""
    main = _load()
    reply = os.dup(1)
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    while line := requests.readline():
        pid = os.fork()
        if pid == 0:
            _child(main, json.loads(line), (reply, requests.fileno()))
        os.write(reply, b"%d\n" % pid)
        os.write(reply, b"%d\n" % os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    serve()
