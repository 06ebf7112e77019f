"""Real journals for tests: what the product writes, on a disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controller.journal import Writer

STEPS: tuple[tuple[str, str | None, str | None, dict[str, Any]], ...] = (
    (
        "run-created",
        None,
        None,
        {"run_id": "r1", "binding": {"target": "codex", "model": None}, "n": 18446744073709551615},
    ),
    ("worktree-prepared", "u1", "a1", {"entries": 3, "manifest_sha256": "ab" * 32}),
    (
        "restore-intent",
        "u1",
        "a1",
        {"cause": "tests failed\n\x1b[31m", "paths": ["caf\udce9", "na\u00efve", "\U0001f600"]},
    ),
    ("canonical-restored", "u1", "a1", {"restore": {"exact": True, "recovered": []}}),
    ("unit-cleaned", "u1", "a1", {"abandoned": False, "abandonment_receipt": None}),
)


def write_journal(path: Path, steps: tuple[tuple[str, str | None, str | None, dict[str, Any]], ...] = STEPS) -> bytes:
    """Make a journal of `steps` at `path`; its bytes."""
    writer = Writer.create(path, *steps[0])
    try:
        for step in steps[1:]:
            writer.append(*step)
    finally:
        writer.close()
    return path.read_bytes()


def overwrite(path: Path, data: bytes) -> None:
    """Put other bytes into a private file, as a fault of the disk would."""
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(data)
