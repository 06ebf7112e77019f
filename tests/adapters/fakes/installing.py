"""Puts a fake agent CLI (`program`) on a room's PATH."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.adapters.support import ANSWER, Room

HERE = Path(__file__).resolve().parent
SERVED = {
    "claude": "claude-opus-5-20260101",
    "grok": "grok-4.6-build",
    "cursor-agent": "Composer 2.5 Fast",
    "opencode": "",
    "agy": "gemini-3.1-pro-high",
    "devin": "SWE-2 High",
}
SCRIPT = """\
#!{interpreter} -IS
import sys
sys.path.insert(0, {here!r})
import program
sys.exit(program.main({cli!r}, {room!r}, {recording!r}, {answer!r}, {model!r}, {without!r}))
"""


def install(
    room: Room,
    cli: str,
    recording: str,
    answer: dict[str, Any] | str = ANSWER,
    *,
    model: str | None = None,
    without: str = "",
) -> None:
    """Install `cli`, which replays its `recording` with the worker's `answer` and says that `model` served it."""
    path = HERE / "recordings" / cli / f"{recording}.txt"
    assert path.is_file(), path
    script = room.bin / cli
    script.write_text(
        SCRIPT.format(
            interpreter=sys.executable,
            here=str(HERE),
            cli=cli,
            room=str(room.path),
            recording=str(path),
            answer=answer if isinstance(answer, str) else json.dumps(answer),
            model=SERVED[cli] if model is None else model,
            without=without,
        )
    )
    script.chmod(0o755)


def recorded(cli: str) -> set[str]:
    """The names of the recordings of `cli`."""
    return {path.stem for path in (HERE / "recordings" / cli).iterdir()}


def received(room: Room, what: str) -> bytes | None:
    """The `prompt` or `stdin` that reached the CLI, or None when it was never called (a probe is no call)."""
    path = room.workspace / f".fake-{what}"
    return path.read_bytes() if path.exists() else None


def called(room: Room) -> dict[str, Any]:
    """How the CLI was called, as it wrote it down."""
    document = json.loads((room.workspace / ".fake-called.json").read_bytes())
    assert isinstance(document, dict)
    return document
