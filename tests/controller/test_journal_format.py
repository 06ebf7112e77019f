"""journal_format.md is true: a reader that shares no code with the product checks its example."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from freezegun import freeze_time

from controller import journal
from controller.records import KINDS
from tests.controller.journal_document import DOCUMENT, EXAMPLE, block, example, kinds_table


def independent_reader(data: bytes) -> list[dict[str, Any]]:
    """Section 8 of journal_format.md and nothing else; AssertionError for what is UNREADABLE."""
    keys = ["v", "seq", "at", "boot", "kind", "unit", "attempt", "data", "prev", "sha256"]
    whole = data[: data.rfind(b"\n") + 1]
    assert whole, "no whole record"
    records, expected_seq, expected_prev = [], 0, "0" * 64
    for line in whole.split(b"\n")[:-1]:
        assert line.startswith(b'{"v":1,'), "version"
        assert line[-77:-66] == b',"sha256":"', "no seal"
        assert line.endswith(b'"}'), "no seal"
        digest = hashlib.sha256(line[:-77]).hexdigest()
        assert line[-66:-2].decode("ascii") == digest, "seal"
        record = json.loads(line)
        assert list(record) == keys, "keys"
        assert json.dumps(record["data"], sort_keys=True, separators=(",", ":")).encode() in line, "spelling"
        assert (record["seq"], record["prev"]) == (expected_seq, expected_prev), "chain"
        expected_seq, expected_prev = expected_seq + 1, digest
        records.append(record)
    return records


def _example_bytes() -> bytes:
    return "".join(line + "\n" for line in block("example").splitlines() if line.startswith("{")).encode("ascii")


def test_the_example_is_verified_by_a_reader_in_other_code() -> None:
    records = independent_reader(_example_bytes())
    assert [record["kind"] for record in records] == [fields["kind"] for fields in EXAMPLE]
    name = records[1]["data"]["paths"][0]
    assert name.encode("utf-8", "surrogateescape") == b"src/caf\xe9.txt"


def test_the_independent_reader_refuses_every_altered_byte_of_the_example() -> None:
    sound = _example_bytes()
    for at in range(len(sound) - 1):
        broken = bytearray(sound)
        broken[at] ^= 0x01
        with pytest.raises((AssertionError, ValueError)):
            independent_reader(bytes(broken))


def test_the_product_reads_the_example_as_the_other_reader_does() -> None:
    records = journal.parse(_example_bytes()).records
    assert [msgspec.to_builtins(record) for record in records] == independent_reader(_example_bytes())


def test_the_product_writes_the_example_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    writer: journal.Writer | None = None
    for fields in EXAMPLE:
        monkeypatch.setattr(journal, "boot_id", lambda boot=fields["boot"]: boot)
        arguments = (fields["kind"], fields["unit"], fields["attempt"], fields["data"])
        with freeze_time(fields["at"]):
            if writer is None:
                writer = journal.Writer.create(path, *arguments)
            else:
                writer.append(*arguments)
    assert writer is not None
    writer.close()
    assert path.read_bytes() == _example_bytes()
    assert block("example") == example(), "run: python -m tests.controller.journal_document"


def test_the_example_holds_data_that_the_controller_accepts() -> None:
    for record in journal.parse(_example_bytes()).records:
        msgspec.convert(record.data, KINDS[record.kind])


def test_the_shell_command_of_the_page_gives_the_first_seal(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_bytes(_example_bytes())
    command = DOCUMENT.read_text("utf-8").rstrip().rsplit("```", 2)[1]
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == independent_reader(_example_bytes())[0]["sha256"]


def test_a_record_kind_that_the_page_does_not_name_is_noticed() -> None:
    assert block("kinds") == kinds_table(), "run: python -m tests.controller.journal_document"
