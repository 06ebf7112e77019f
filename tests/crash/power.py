"""What a power cut may leave of an append-only file: recorded as written and synced, rebuilt without what was not."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tests.crash import syscalls
from tests.crash.plans import Counting
from tests.crash.syscalls import Call
from tests.crash.watch import Watch


class Moment(msgspec.Struct, frozen=True):
    """The file between two effects of a command: `synced` bytes of `written` are on the disk."""

    written: int
    synced: int


class Recorder(Counting):
    """Follows one file through a command, and notes every effect on a repository that came before its bytes were synced.

    The file has `size` bytes, all of them synced, when the command begins.
    """

    def __init__(self, journal: str, repository: str, size: int) -> None:
        super().__init__()
        self._journal = journal
        self._repository = repository
        self.moments = [Moment(size, size)]
        self.early: list[str] = []
        self.data = b""

    def at(self, watch: Watch, call: Call) -> bool:
        """Note what the call will do to the file; an effect elsewhere is compared with what is synced by then."""
        now = self.moments[-1]
        path = syscalls.target(call)
        if path == self._journal and call.name == "write":
            self.data += syscalls.memory(call.pid, call.args[1], call.args[2])
            self.moments.append(Moment(now.written + call.args[2], now.synced))
        elif path == self._journal and call.name == "fsync":
            self.moments.append(Moment(now.written, now.written))
        elif path == self._journal and call.name == "ftruncate":
            self.moments.append(Moment(call.args[1], min(now.synced, call.args[1])))
        elif now.synced < now.written and path.startswith(self._repository) and call.name != "execve":
            self.early.append(str(watch.effect(call)))
        return False


def remains(whole: bytes, moments: list[Moment], step: int) -> Iterator[bytes]:
    """Every content that a cut may leave: of the unsynced bytes none, all, or any part (every `step`-th length).

    And the same with the missing bytes as zeros: a file system may have the new size on disk before the new blocks.
    """
    seen = set()
    for moment in moments:
        lengths = {moment.synced, moment.written, *range(moment.synced, moment.written, step)}
        for length in sorted(lengths):
            for content in (whole[:length], whole[:length] + bytes(moment.written - length)):
                if content not in seen:
                    seen.add(content)
                    yield content
