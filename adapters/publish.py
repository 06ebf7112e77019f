"""The evidence that a call leaves: `adapter.log` while it runs, `implementation-result.json` when it has
ended.

Both are made by descriptor inside the result directory that was authorized. The worker runs under the same
user and could put another directory or file in place meanwhile: what was swapped is refused, never followed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from adapters.contract import LOG_NAME, RESULT_NAME
from adapters.errors import AdapterError
from adapters.redaction import RedactedStream, Redactor
from runner.private import DIR_MODE, FILE_MODE, write_all

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

LOG_REFUSED = "adapter log retention refused"
RESULT_REFUSED = "result receipt publication refused"


class ResultDirectory:
    """One attempt's result directory, held open from authorization to publication. Use as a context."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        try:
            self._fd = os.open(path, _DIRECTORY)
            os.fchmod(self._fd, DIR_MODE)
        except OSError as error:
            self.close()
            raise AdapterError(f"result directory {path}: expected a real directory: {error.strerror}") from None
        status = os.fstat(self._fd)
        self._identity = (status.st_dev, status.st_ino)

    def __enter__(self) -> ResultDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def create_log(self, redactor: Redactor, cap: int) -> AdapterLog:
        """The log, newly created; an existing one (an earlier call, a planted link) is refused."""
        self._require_same(LOG_REFUSED)
        try:
            fd = os.open(LOG_NAME, _CREATE, FILE_MODE, dir_fd=self._fd)
        except OSError as error:
            raise AdapterError(f"{LOG_REFUSED}: cannot create {LOG_NAME}: {error.strerror}") from None
        os.fchmod(fd, FILE_MODE)
        return AdapterLog(fd, redactor, cap)

    def publish(self, data: bytes, log: AdapterLog) -> None:
        """Put the result file in place, whole and durable, after checking that directory and log are ours."""
        self._require_same(RESULT_REFUSED)
        try:
            named = os.stat(LOG_NAME, dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            named = None
        if named is None or (named.st_dev, named.st_ino) != log.identity:
            raise AdapterError(f"{LOG_REFUSED}: {LOG_NAME} was removed or replaced during the call")
        temporary = f".result-{os.getpid()}-{os.urandom(6).hex()}"
        try:
            fd = os.open(temporary, _CREATE, FILE_MODE, dir_fd=self._fd)
            try:
                os.fchmod(fd, FILE_MODE)
                write_all(fd, data)
                os.fsync(fd)
                os.rename(temporary, RESULT_NAME, src_dir_fd=self._fd, dst_dir_fd=self._fd)
                os.fsync(self._fd)
            finally:
                os.close(fd)
        except OSError as error:
            self._remove(temporary)
            raise AdapterError(f"{RESULT_REFUSED}: {error.strerror}") from None
        self._require_same(RESULT_REFUSED)

    def _remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._fd)
        except OSError:
            # Renamed already, or it never came to be.
            pass

    def _require_same(self, refusal: str) -> None:
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except OSError:
            found = None
        if found is None or not stat.S_ISDIR(found.st_mode) or (found.st_dev, found.st_ino) != self._identity:
            raise AdapterError(f"{refusal}: result directory identity changed: {self.path}")


class AdapterLog:
    """Takes the CLI's output as it comes: redacted, written at once, never more than `cap` bytes.

    What is written survives the death of this process, hence no buffering (section 18 row 20).
    """

    def __init__(self, fd: int, redactor: Redactor, cap: int) -> None:
        status = os.fstat(fd)
        self.identity = (status.st_dev, status.st_ino)
        self.raw_bytes = 0
        self._fd = fd
        self._cap = cap
        self._room = cap
        self._redactor = redactor
        self._streams: dict[str, RedactedStream] = {}

    @property
    def over_cap(self) -> bool:
        """Whether more raw bytes came than the cap allows."""
        return self.raw_bytes > self._cap

    def __enter__(self) -> AdapterLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, stream: str, chunk: bytes) -> None:
        """Append what `stream` (any name; each is redacted on its own) printed.

        Raises `AdapterError` when the file system does not take it.
        """
        self.raw_bytes += len(chunk)
        if stream not in self._streams:
            self._streams[stream] = self._redactor.stream()
        try:
            self._append(self._streams[stream].feed(chunk))
        except OSError as error:
            raise AdapterError(f"{LOG_REFUSED}: {error.strerror}") from None

    def finish(self) -> None:
        """Write what was held back as a possible secret, and make the log durable."""
        try:
            for stream in self._streams.values():
                self._append(stream.finish())
            os.fsync(self._fd)
        except OSError as error:
            raise AdapterError(f"{LOG_REFUSED}: {error.strerror}") from None
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, data: bytes) -> None:
        kept = data[: self._room]
        write_all(self._fd, kept)
        self._room -= len(kept)
