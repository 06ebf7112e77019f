"""The journal file of a run: read whole and checked, or appended to by its one writer, one fsync a record.

`journal_format.md` specifies it; `journal_lines` is its pure part. Sizes and offsets are bytes.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controller.errors import Blocked, Unreadable
from controller.journal_lines import GENESIS, VERSION, Damage, JournalBytes, Record, encode, parse, spell
from controller.records import TornTailMoved
from runner import private
from runner.errors import Untrusted, printable
from runner.process import boot_id

__all__ = [
    "GENESIS",
    "VERSION",
    "Damage",
    "JournalBytes",
    "Record",
    "Writer",
    "encode",
    "parse",
    "read",
    "spell",
    "utc_now_ms",
]

_REMEDIES = {
    errno.ENOSPC: "free space on the file system of the run",
    errno.EDQUOT: "free space within the disk quota",
    errno.EFBIG: "raise the file size limit (ulimit -f)",
    errno.EIO: "check the disk of the run",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close programs that hold many open files",
    errno.EROFS: "make the file system of the run writable",
}


def utc_now_ms() -> str:
    """The time now, `YYYY-MM-DDTHH:MM:SS.mmmZ`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read(path: Path) -> JournalBytes:
    """The validated journal at `path`, its torn tail left out of `records`; nothing is changed.

    `FileNotFoundError` without a journal, `Unreadable` for damage or a file that is not private, `Blocked`
    for a fault of the disk.
    """
    return _load(path)[1]


class Writer:
    """The one writer of a journal; only for a caller that holds the run's exclusive lock.

    `last` is the newest record. Before anything else the caller of `open` appends a `journal-torn-tail-moved`
    record while there is a `moved` tail.
    """

    def __init__(self, path: Path, fd: int, size: int, last: Record, loose: list[TornTailMoved]) -> None:
        self._path = path
        self._fd = fd
        self._size = size
        self._poison: str | None = None
        self._loose = loose
        self.last = last

    @property
    def moved(self) -> TornTailMoved | None:
        """The oldest torn tail that lies beside the journal and in no record yet; its record ends this."""
        return self._loose[0] if self._loose else None

    @classmethod
    def create(
        cls,
        path: Path,
        kind: str,
        unit: str | None,
        attempt: str | None,
        data: dict[str, Any],
        at: str | None = None,
    ) -> Writer:
        """Begin a journal: a kill leaves none or one with this whole record; `Blocked` when there is one."""
        line, record = encode(
            seq=0,
            at=at or utc_now_ms(),
            boot=boot_id(),
            kind=kind,
            unit=unit,
            attempt=attempt,
            data=data,
            prev=GENESIS,
        )
        with _faults(path, "create the journal", "run the same command again"):
            try:
                private.create_exclusive(path, line)
            except FileExistsError:
                raise Blocked(
                    f"a journal exists already: {printable(str(path))}",
                    expected="no journal",
                    found="a journal",
                    remedy="choose a new run id, or go on with this run by `resume --run-id`",
                ) from None
            return cls(path, _open_append(path), len(line), record, [])

    @classmethod
    def open(cls, path: Path) -> tuple[Writer, JournalBytes]:
        """Read, validate, make durable what is there, and move a torn tail aside; errors as `read`."""
        data, journal = _load(path)
        with _faults(path, "open the journal", _resume(path)):
            fd = _open_append(path)
            try:
                _check_size(path, fd, len(data))
                # The last call may have been killed between a write and its fsync (of the directory, for the
                # first record): nothing may rest on a record that a power cut could still take away.
                os.fsync(fd)
                if len(journal.records) == 1:
                    private.fsync_dir(path.parent)
                loose = _move_aside(path, journal)
                if journal.torn:
                    os.ftruncate(fd, journal.size)
                    os.fsync(fd)
            except BaseException:
                os.close(fd)
                raise
        return cls(path, fd, journal.size, journal.records[-1], loose), journal

    def append(
        self, kind: str, unit: str | None, attempt: str | None, data: dict[str, Any], at: str | None = None
    ) -> Record:
        """Write one record and fsync it: once this returns it is durable, if this raises it is not recorded.

        `Refused` for data that has no place in a journal (the writer stays good). `Blocked` for a fault of
        the disk: the file is cut back, and every later append of this writer is `Blocked`.
        """
        if self._poison is not None:
            raise Blocked(
                f"the journal takes no {kind} record: {self._poison}",
                expected="a journal that was opened after the fault",
                found=self._poison,
                remedy=_resume(self._path),
            )
        line, record = encode(
            seq=self.last.seq + 1,
            at=at or utc_now_ms(),
            boot=boot_id(),
            kind=kind,
            unit=unit,
            attempt=attempt,
            data=data,
            prev=self.last.sha256,
        )
        with _faults(self._path, f"write the {kind} record", _resume(self._path)):
            try:
                _check_size(self._path, self._fd, self._size)
            except BaseException:
                self._poison = "the journal was changed by somebody else"
                raise
            try:
                private.write_all(self._fd, line)
                os.fsync(self._fd)
            except BaseException as fault:
                # After a failed fsync the page cache may show bytes that the disk will never have, so that
                # record goes back too: no later call may build on it. Where even this fails, the torn tail
                # rule does the rest.
                self._poison = f"record {record.seq} could not be written ({fault})"
                with suppress(OSError):
                    os.ftruncate(self._fd, self._size)
                raise
        self._size += len(line)
        self.last = record
        if kind == TornTailMoved.kind:
            self._loose = [tail for tail in self._loose if tail.file != record.data.get("file")]
        return record

    def close(self) -> None:
        """Let go of the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._poison = "its writer is closed"


def _load(path: Path) -> tuple[bytes, JournalBytes]:
    if not os.path.lexists(path):
        raise FileNotFoundError(errno.ENOENT, "no journal", str(path))
    with _faults(path, "read the journal", _resume(path)):
        data = private.read_private(path, max_bytes=None)
    try:
        return data, parse(data)
    except Damage as damage:
        raise Unreadable(
            f"the journal is damaged: {printable(str(path))}: {damage}",
            detail={"line": damage.line, "offset": damage.offset},
            expected=damage.expected,
            found=damage.found,
            remedy="the file was left as it is: put back a copy of it, or begin a new run",
        ) from None


def _open_append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)


def _check_size(path: Path, fd: int, size: int) -> None:
    """`Blocked` unless the open file is still in its directory and as long as its only writer left it."""
    status = os.fstat(fd)
    if status.st_nlink == 0 or status.st_size != size:
        raise Blocked(
            f"the journal was changed by somebody else: {printable(str(path))}",
            expected=f"{size} bytes",
            found="a removed file" if status.st_nlink == 0 else f"{status.st_size} bytes",
            remedy="let only unit-workspace write in the run's directory, then run it again",
        )


def _move_aside(path: Path, journal: JournalBytes) -> list[TornTailMoved]:
    """Copy the torn tail beside the journal; every copy that no record names, also those of a killed call."""
    recorded = [record.data for record in journal.records if record.kind == TornTailMoved.kind]
    named = {(data.get("file"), data.get("sha256")) for data in recorded}
    loose = []
    number = 1
    while os.path.lexists(file := path.with_name(f"{path.stem}.torn.{number}")):
        tail = _moved(file, private.read_private(file, max_bytes=None))
        if (tail.file, tail.sha256) not in named:
            loose.append(tail)
        number += 1
    if journal.torn and _moved(file, journal.torn).sha256 not in [tail.sha256 for tail in loose]:
        private.create_exclusive(file, journal.torn)
        loose.append(_moved(file, journal.torn))
    return loose


def _moved(file: Path, torn: bytes) -> TornTailMoved:
    return TornTailMoved(file=file.name, bytes=len(torn), sha256=hashlib.sha256(torn).hexdigest())


def _resume(path: Path) -> str:
    return f"run `unit-workspace resume --run-id {printable(path.parent.name)}`"


@contextmanager
def _faults(path: Path, doing: str, then: str) -> Iterator[None]:
    """A file that is not private becomes `Unreadable`, every other fault of the disk `Blocked`."""
    try:
        yield
    except Untrusted as fault:
        raise Unreadable(str(fault), expected=fault.expected, found=fault.found, remedy=fault.remedy) from None
    except OSError as fault:
        name = errno.errorcode.get(fault.errno or 0, "unknown errno")
        remedy = _REMEDIES.get(fault.errno or 0, "remove the cause")
        raise Blocked(
            f"cannot {doing} ({printable(str(path))}): {name}, {fault.strerror}",
            detail={"errno": name},
            found=name,
            remedy=f"{remedy}, then {then}",
        ) from fault
