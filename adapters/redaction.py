"""Replaces secrets in what leaves the machine or stays in a log, in time linear in the text.

One alternation over all secrets, longest first, is matched in a single pass: a replacement is never scanned
again, so that a secret like `RED` cannot tear `[REDACTED]` apart. A stream is redacted as it comes; only a
tail that could still become a secret is held back. Source: protocol section 13, section 18 row 20.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from adapters.errors import AdapterError
from adapters.files import read_regular

REPLACEMENT = b"[REDACTED]"
MAX_REDACTION_FILE_BYTES = 1024 * 1024


class Redactor:
    """Knows a set of secrets (non-empty byte strings) and replaces every occurrence with `[REDACTED]`.

    A secret with quotes, backslashes or non-ASCII characters looks different inside a JSON log line, and
    again inside a JSON string that holds JSON: those spellings are replaced too.
    """

    def __init__(self, secrets: Iterable[bytes] = ()) -> None:
        spellings = {spelling for secret in secrets if secret for spelling in _spellings(secret)}
        self._secrets = sorted(spellings, key=lambda secret: (-len(secret), secret))
        self._pattern = _alternation(self._secrets) if self._secrets else None

    def redact(self, data: bytes) -> bytes:
        """`data` with every secret replaced."""
        return data if self._pattern is None else self._pattern.sub(REPLACEMENT, data)

    def redact_text(self, text: str) -> str:
        """The same for a string, which may hold lone surrogates."""
        if self._pattern is None:
            return text
        return self.redact(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def stream(self) -> RedactedStream:
        """A fresh state for one stream of chunks."""
        return RedactedStream(self._secrets, self._pattern)


class RedactedStream:
    """Redacts one stream chunk by chunk; the joined output equals `Redactor.redact` of the joined input."""

    def __init__(self, secrets: list[bytes], pattern: re.Pattern[bytes] | None) -> None:
        self._secrets = secrets
        self._pattern = pattern
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """What is now certain to hold no part of a secret."""
        if self._pattern is None:
            return chunk
        data = self._held + chunk
        out: list[bytes] = []
        position = 0
        hold = self._first_open_prefix(data, 0)
        for match in self._pattern.finditer(data):
            if match.start() >= hold:
                break
            out += (data[position : match.start()], REPLACEMENT)
            position = match.end()
            if position > hold:
                # The match consumed the bytes that looked like the beginning of another secret.
                hold = self._first_open_prefix(data, position)
        out.append(data[position:hold])
        self._held = data[hold:]
        return b"".join(out)

    def finish(self) -> bytes:
        """What was held back when the stream ended."""
        rest, self._held = self._held, b""
        return rest if self._pattern is None else self._pattern.sub(REPLACEMENT, rest)

    def _first_open_prefix(self, data: bytes, start: int) -> int:
        """The first index from `start` on from which `data` runs out inside a secret; else its length."""
        first = len(data)
        for secret in self._secrets:
            at = data.find(secret[:1], max(start, len(data) - len(secret) + 1))
            while 0 <= at < first:
                if secret.startswith(data[at:]):
                    first = at
                    break
                at = data.find(secret[:1], at + 1)
        return first


def load_redactor(environ_value: str | None) -> Redactor:
    """The redactor of `CE_WORK_REDACT_FILE` (one secret per line); without the variable, one that knows none.

    Raises `AdapterError` when the file is named but is missing, unreadable or no regular file: sending a
    packet unredacted because of a typing error in a path is what nobody would want.
    """
    if not environ_value:
        return Redactor()
    return Redactor(_read_lines(Path(environ_value)))


def _read_lines(path: Path) -> list[bytes]:
    try:
        data, _ = read_regular(path, MAX_REDACTION_FILE_BYTES, follow=True)
    except OSError as error:
        raise _unusable(path, error.strerror or "cannot be read") from None
    if len(data) > MAX_REDACTION_FILE_BYTES:
        raise _unusable(path, f"more than {MAX_REDACTION_FILE_BYTES} bytes")
    return [line.removesuffix(b"\r") for line in data.split(b"\n")]


def _unusable(path: Path, why: str) -> AdapterError:
    return AdapterError(
        f"egress refused: the redaction file named by CE_WORK_REDACT_FILE is unusable ({why}): {path}; "
        "nothing was sent; provide the file, or unset the variable to send without redaction"
    )


def _spellings(secret: bytes) -> list[bytes]:
    import json

    spellings = [secret]
    try:
        layer = {secret.decode("utf-8")}
    except UnicodeDecodeError:
        return spellings
    for _ in range(2):
        layer = {json.dumps(text, ensure_ascii=plain)[1:-1] for text in layer for plain in (True, False)}
        spellings += (text.encode("utf-8") for text in layer)
    return spellings


def _alternation(secrets: list[bytes]) -> re.Pattern[bytes]:
    # Grouped by first byte: the engine then skips a position after one table look-up, however many secrets
    # there are. `secrets` is sorted longest first, and only secrets with the same first byte compete for a
    # position.
    tails: dict[bytes, list[bytes]] = {}
    for secret in secrets:
        tails.setdefault(secret[:1], []).append(re.escape(secret[1:]))
    groups = (re.escape(first) + b"(?:" + b"|".join(rest) + b")" for first, rest in tails.items())
    return re.compile(b"|".join(groups), re.DOTALL)
