"""A process of its own that works on a journal while a test breaks or kills it; each step says a line.

`python -m tests.controller.journal_child PATH STEP…`. Steps: `create`, `open`, `append`, `stream` (appends
for ever, a line each time one is durable), `repair` (records a moved torn tail), `filelimit:BYTES` (more than
the file has), `openlimit`, `fault:CALL:ERRNO|kill[:writer|:next|:second]` (on the writer's or a coming
descriptor only).
"""

from __future__ import annotations

import errno
import json
import resource
import sys
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from controller.errors import ControllerError
from controller.journal import Writer
from tests.controller.journal_faults import descriptor_of, inject, next_descriptor


def _say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


class _Child:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer: Writer | None = None

    def _fd(self) -> int | None:
        return None if self.writer is None else descriptor_of(self.path)

    def step(self, name: str, *args: str) -> dict[str, Any]:
        if name == "create":
            self.writer = Writer.create(self.path, "run-created", None, None, {"run_id": "r"})
            return {"seq": 0}
        if name == "open":
            self.writer, found = Writer.open(self.path)
            return {"records": len(found.records), "torn": len(found.torn)}
        if name == "openlimit":
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (next_descriptor(), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            )
            return {}
        if name == "filelimit":
            limit = self.path.stat().st_size + int(args[0])
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            return {}
        if name == "fault":
            call, fault, *where = args
            descriptors = {"writer": self._fd(), "next": next_descriptor(), "second": next_descriptor() + 1}
            fd = descriptors[where[0]] if where else None
            inject(call, None if fault == "kill" else getattr(errno, fault), fd)
            return {}
        assert self.writer is not None
        if name == "repair":
            moved = self.writer.moved
            assert moved is not None
            return {"seq": self.writer.append(moved.kind, None, None, msgspec.to_builtins(moved)).seq}
        if name == "append":
            return {"seq": self.writer.append("job-synced", "u1", "a1", {"text": "x" * 300}).seq}
        assert name == "stream", name
        for number in count():
            size = 400_000 if number % 5 == 4 else 300
            _say(seq=self.writer.append("job-synced", "u1", "a1", {"text": "x" * size}).seq)
        raise AssertionError


def main() -> None:
    child = _Child(Path(sys.argv[1]))
    for step in sys.argv[2:]:
        name, *args = step.split(":")
        try:
            _say(step=name, **child.step(name, *args))
        except ControllerError as error:
            _say(step=name, word=error.word, message=error.message, remedy=error.remedy)


if __name__ == "__main__":
    main()
