"""Secrets leave neither with the prompt nor through the log, however the bytes are cut, and at no great cost."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.errors import AdapterError
from adapters.redaction import Redactor, load_redactor


def test_longest_secret_wins_so_that_no_tail_of_it_is_left() -> None:
    assert Redactor([b"abc", b"abcdef"]).redact(b"x abcdef abc y") == b"x [REDACTED] [REDACTED] y"


def test_a_secret_that_is_part_of_the_replacement_does_not_tear_it_apart() -> None:
    assert Redactor([b"RED", b"key"]).redact(b"key RED") == b"[REDACTED] [REDACTED]"


def test_a_secret_is_found_in_its_json_spellings() -> None:
    secret = 'pa"ss\\wörd'
    redactor = Redactor([secret.encode()])
    inner = json.dumps({"env": secret})
    for line in (json.dumps(secret), json.dumps(secret, ensure_ascii=False), json.dumps({"text": inner})):
        assert b"ss\\" not in redactor.redact(line.encode())
        assert b"[REDACTED]" in redactor.redact(line.encode())


def test_text_with_bytes_that_are_no_utf8_survives() -> None:
    assert Redactor([b"key"]).redact_text("a\udcffkey") == "a\udcff[REDACTED]"


SMALL = st.binary(max_size=4).map(lambda data: bytes(b"ab\n"[byte % 3] for byte in data))


@given(secrets=st.lists(SMALL, max_size=4), chunks=st.lists(SMALL, max_size=12))
def test_cutting_the_stream_anywhere_redacts_exactly_the_same(secrets: list[bytes], chunks: list[bytes]) -> None:
    redactor = Redactor(secrets)
    stream = redactor.stream()
    streamed = b"".join([*(stream.feed(chunk) for chunk in chunks), stream.finish()])
    assert streamed == redactor.redact(b"".join(chunks))


def test_what_cannot_be_a_secret_is_not_held_back() -> None:
    stream = Redactor([b"secret-token"]).stream()
    assert stream.feed(b"working... sec") == b"working... "
    assert stream.feed(b"onde") == b"seconde"


def test_ten_megabytes_and_twenty_secrets_take_no_noticeable_time() -> None:
    secrets = [os.urandom(20).hex().encode() for _ in range(20)]
    line = b'{"type":"item.completed","item":{"aggregated_output":"deadbeef 0123 words and words"}}\n'
    data = (line * 200 + secrets[3] + b"\n") * (10 * 1024 * 1024 // (len(line) * 200))
    started = time.process_time()
    stream = Redactor(secrets).stream()
    out = b"".join(stream.feed(data[at : at + 65536]) for at in range(0, len(data), 65536)) + stream.finish()
    # Ten times what it takes, so that a busy machine does not matter and a byte loop (21 s) does.
    assert time.process_time() - started < 2.0
    assert secrets[3] not in out
    assert out.count(b"[REDACTED]") == data.count(secrets[3])


def test_lines_are_secrets_and_empty_lines_are_none(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_bytes(b"one\r\n\ntwo\n")
    assert load_redactor(str(path)).redact(b"one, two, \r\n") == b"[REDACTED], [REDACTED], \r\n"


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo"])
def test_an_unusable_redaction_file_is_an_error_and_never_ignored(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "secrets"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(AdapterError, match=r"egress refused.*CE_WORK_REDACT_FILE"):
        load_redactor(str(path))


def test_without_the_variable_nothing_is_redacted() -> None:
    assert load_redactor(None).redact(b"anything") == b"anything"
    assert load_redactor("").redact(b"anything") == b"anything"
