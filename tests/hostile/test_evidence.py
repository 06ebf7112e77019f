"""A worker that forges evidence: its result, its log, packet, authorization, job record, and the journal itself."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hazards.support import Trap, abandon, case, records, resume, terminalize
from tests.host import Host
from tests.hostile.support import Backup, quiet


def _result(host: Host) -> Path:
    return host.run_dir() / "units/U1/result/implementation-result.json"


def _edit(host: Host, **changes: Any) -> None:
    value = json.loads(_result(host).read_text())
    host.private(_result(host), json.dumps({**value, **changes}))


def _another_route(host: Host) -> None:
    _edit(host, requested_route="claude", actual_route="claude", target="claude", harness="claude")


def _another_packet(host: Host) -> None:
    _edit(host, packet_digest="0" * 64)


def _another_model(host: Host) -> None:
    _edit(host, model_requested="o3", model_receipt_status="verified")


def _another_log(host: Host) -> None:
    host.private(host.base / "log", "log\n")
    _edit(host, raw_log=str(host.base / "log"))


def _more_keys(host: Host) -> None:
    _edit(host, terminal_status="done and integrated")


def _no_json(host: Host) -> None:
    host.private(_result(host), "{")


def _very_deep(host: Host) -> None:
    host.private(_result(host), "[" * 200_000)


def _too_large(host: Host) -> None:
    with open(_result(host), "r+b") as file:
        file.truncate(1 << 40)


def _for_everybody(host: Host) -> None:
    _result(host).chmod(0o644)


def _a_link(host: Host) -> None:
    target = host.base / "elsewhere.json"
    _result(host).rename(target)
    _result(host).symlink_to(target)


def _a_fifo(host: Host) -> None:
    _result(host).unlink()
    os.mkfifo(_result(host), 0o600)


def _none(host: Host) -> None:
    _result(host).unlink()


def _no_log(host: Host) -> None:
    _result(host).with_name("adapter.log").unlink()


def _linked_log(host: Host) -> None:
    log = _result(host).with_name("adapter.log")
    log.unlink()
    log.symlink_to("/etc/hostname")


def _another_folder(host: Host) -> None:
    folder = _result(host).parent
    folder.rename(folder.with_name("old"))
    folder.mkdir(mode=0o700)
    for name in ("implementation-result.json", "adapter.log"):
        host.private(folder / name, (folder.with_name("old") / name).read_text())


def _linked_folder(host: Host) -> None:
    folder = _result(host).parent
    folder.rename(host.base / "result")
    folder.symlink_to(host.base / "result")


FORGERIES: dict[str, tuple[Callable[[Host], None], str, str]] = {
    "another route": (_another_route, "BLOCKED", "does not match controller authorization"),
    "another packet": (_another_packet, "BLOCKED", "does not match controller authorization"),
    "another model": (_another_model, "BLOCKED", "does not match controller authorization"),
    "another log": (_another_log, "BLOCKED", "another raw log"),
    "a word of its own": (_more_keys, "BLOCKED", "not a result document"),
    "no JSON": (_no_json, "BLOCKED", "not a result document"),
    "JSON that never ends": (_very_deep, "BLOCKED", "not a result document"),
    "too large": (_too_large, "UNREADABLE", "implementation-result.json"),
    "readable for everybody": (_for_everybody, "UNREADABLE", "0644"),
    "a link": (_a_link, "UNREADABLE", "symbolic link"),
    "a FIFO": (_a_fifo, "UNREADABLE", "FIFO"),
    "nothing": (_none, "BLOCKED", "published no result"),
    "no log": (_no_log, "UNREADABLE", "adapter.log"),
    "a log that is a link": (_linked_log, "UNREADABLE", "symbolic link"),
    "another folder": (_another_folder, "UNREADABLE", "result directory identity changed"),
    "a linked folder": (_linked_folder, "UNREADABLE", "result directory identity changed"),
}


def test_a_forged_result_is_never_accepted(run: Host, trap: Trap) -> None:
    run.author()
    result = _result(run).parent
    backup = Backup(result)
    for way, (forge, word, phrase) in FORGERIES.items():
        with case(way):
            forge(run)
            with quiet(trap):
                reply = terminalize(run).expect(word)
            assert phrase in reply.stderr
            assert run.unit()["state"] == "authoring"
            assert run.unit()["transport"]["commit"] is None
            for real in (result.with_name("old"), run.base / "result"):
                if real.exists():  # the very folder comes back
                    result.unlink() if result.is_symlink() else shutil.rmtree(result)
                    real.rename(result)
            backup.put_back()
    backup.forget()
    # None of it was remembered against the honest result.
    terminalize(run).expect("INTEGRATION_PENDING")


@pytest.mark.parametrize("way", ["a linked folder", "too large"])
def test_an_attempt_with_a_forged_result_can_be_given_up_and_nothing_elsewhere_goes(run: Host, way: str) -> None:
    run.author()
    FORGERIES[way][0](run)
    terminalize(run).expect(FORGERIES[way][1])
    abandon(run).expect("CLEANED")
    assert (run.base / "result/adapter.log").exists() == (way == "a linked folder")


def test_a_result_that_changes_after_it_was_accepted_is_noticed(run: Host) -> None:
    def work(workspace: Path) -> None:
        os.mkfifo(workspace / "fifo")

    run.author("U1", work)
    terminalize(run).expect("BLOCKED")
    assert run.unit()["state"] == "authored"
    (run.run_dir() / "units/U1/workspace/fifo").unlink()
    _edit(run, summary="something else")
    reply = terminalize(run).expect("BLOCKED")
    assert "changed after it was recorded" in reply.stderr


def test_a_packet_or_authorization_that_was_changed_is_never_dispatched(run: Host) -> None:
    prepared = run.prepare().expect("PREPARED").body
    job = run.write_job(prepared)
    for name in ("packet.md", "authorization.json"):
        path = run.run_dir() / "units/U1" / name
        text = path.read_text()
        for how in ("bytes", "mode", "link"):
            with case(f"{name}: {how}"):
                if how == "bytes":
                    run.private(path, text.replace("codex", "claude") + "\n")
                elif how == "mode":
                    path.chmod(0o666)
                else:
                    path.rename(run.base / name)
                    path.symlink_to(run.base / name)
                reply = run.authorize(prepared, job).expect("BLOCKED" if how == "bytes" else "UNREADABLE")
                assert name.split(".")[0] in reply.stderr
                assert run.unit()["state"] == "queued"
                path.unlink()
                run.private(path, text)
    run.authorize(prepared, job).expect("AUTHORIZED")


def test_a_job_that_says_it_is_another_is_never_bound(run: Host) -> None:
    prepared = run.prepare().expect("PREPARED").body
    job = run.write_job(prepared)
    meta = run.run_dir() / "jobs" / job / "meta.json"
    text = meta.read_text()
    for field in ("worker_argv", "run_id", "label", "input_digest", "result_path", "skill", "job_id"):
        with case(field):
            changed = ["/bin/sh", "-c", "evil"] if field == "worker_argv" else "another"
            run.private(meta, json.dumps({**json.loads(text), field: changed}))
            run.authorize(prepared, job).expect("BLOCKED")
            assert run.unit()["attempts"][-1]["job_id"] is None
    record = ("--run-id", "r1", "--unit-id", "U1", "--attempt-id", "attempt-1", "--job-id", job)
    run.call("record-job", *record).expect("BLOCKED")
    assert resume(run).word in ("RESUMED", "BLOCKED")
    assert run.unit()["attempts"][-1]["job_id"] is None
    run.private(meta, text)
    run.authorize(prepared, job).expect("AUTHORIZED")


def _reworded(data: bytes) -> bytes:
    return data.replace(b'"state"', b'"State"', 1) if b'"state"' in data else data.replace(b"U1", b"U2", 1)


def _appended(data: bytes) -> bytes:
    """A record that claims that the unit is integrated, with a chain that fits and a hash of its own invention."""
    last = json.loads(data.splitlines()[-1])
    record = {**last, "seq": last["seq"] + 1, "kind": "canonical-commit-confirmed", "prev": last["sha256"]}
    del record["sha256"]
    return data + json.dumps({**record, "sha256": "0" * 64}, separators=(",", ":")).encode() + b"\n"


def _cut(data: bytes) -> bytes:
    return b"".join(data.splitlines(keepends=True)[:2] + data.splitlines(keepends=True)[3:])


def _emptied(data: bytes) -> bytes:
    return b""


def test_a_journal_that_a_worker_wrote_into_is_never_believed(run: Host, trap: Trap) -> None:
    journal = run.run_dir() / "journal.jsonl"
    run.author()
    before = run.fingerprint()
    whole = journal.read_bytes()
    for tamper in (_reworded, _appended, _cut, _emptied):
        with case(tamper.__name__):
            data = tamper(whole)
            journal.write_bytes(data)
            for words in (
                ("terminalize", "--unit-id", "U1"),
                ("status",) if tamper is _cut else ("resume",),
                ("integrate", "--unit-id", "U1", "--commit-message", "x", "--", str(trap.program)),
            ):
                with quiet(trap):
                    run.call(words[0], "--run-id", "r1", *words[1:]).expect("UNREADABLE")
            assert journal.read_bytes() == data, "it is left as it was found"
            assert run.fingerprint() == before
    # Another run of the same repository goes on; with its own journal back this one does, too.
    run.init("r2").expect("READY")
    run.pending("V1", {"f": "other\n"}, run="r2")
    run.integrate("V1", run="r2").expect("UNIT_COMMITTED")
    journal.write_bytes(whole)
    terminalize(run).expect("INTEGRATION_PENDING")


def test_a_well_formed_record_of_a_forger_still_needs_the_evidence(run: Host) -> None:
    """The chain is no signature: with write access to the run it can be continued. The fold refuses illegal moves."""
    run.author()
    journal = run.run_dir() / "journal.jsonl"
    last = json.loads(journal.read_bytes().splitlines()[-1])
    bound = records(run, "job-bound")[-1]
    record = {**bound, "seq": last["seq"] + 1, "prev": last["sha256"], "kind": "unit-cleaned"}
    record["data"] = {"abandoned": False, "abandonment_receipt": None}
    del record["sha256"]
    body = json.dumps(record, separators=(",", ":"))[:-1].encode()
    digest = hashlib.sha256(body).hexdigest()
    with open(journal, "ab") as file:
        file.write(body + b',"sha256":"' + digest.encode() + b'"}\n')
    run.call("verify-run", "--run-id", "r1", "--", "true").expect("REFUSED")
    assert run.git("log", "--format=%s") == "first"


def test_a_projection_that_was_edited_is_never_read_back(run: Host) -> None:
    run.author()
    manifest = run.run_dir() / "manifest.json"
    value = json.loads(manifest.read_text())
    value["units"]["U1"]["state"] = "committed"
    value["repository"]["toplevel"] = "/"
    run.private(manifest, json.dumps(value))
    terminalize(run).expect("INTEGRATION_PENDING")
    assert run.unit()["state"] == "integration-pending"
    run.integrate().expect("UNIT_COMMITTED")


def test_what_prepare_recorded_of_the_workspace_is_never_taken_from_the_worker(run: Host, trap: Trap) -> None:
    workspace = Path(run.author("U1", {"f": "worker\n"})["workspace"])
    for name in ("workspace-manifest", "git-attributes", "git-exclude", "git-config"):
        with case(name):
            path = workspace.parent / name
            whole = path.read_bytes()
            if name == "workspace-manifest":
                path.write_bytes(whole.replace(b'"f"', b'"g"'))
            elif name == "git-config":
                path.write_bytes(whole + f"filter.evil.clean\n{trap.program}".encode() + b"\0")
            else:
                path.write_bytes(b"* filter=evil\n")
            with quiet(trap):
                reply = terminalize(run)
            assert reply.word in ("UNREADABLE", "BLOCKED", "INTEGRATION_PENDING")
            if name == "workspace-manifest":
                reply.expect("UNREADABLE")
            if reply.word == "INTEGRATION_PENDING":
                assert run.git("show", f"{run.unit()['transport']['commit']}:f") == "worker"
            path.write_bytes(whole)


def test_a_folder_of_the_run_swapped_for_a_link_is_never_emptied(run: Host, trap: Trap) -> None:
    precious = run.base / "precious"
    for name in ("workspace/keep", "result/keep", "U1/workspace/keep", "job-U1-attempt-1/keep"):
        (precious / name).parent.mkdir(parents=True, exist_ok=True)
        (precious / name).write_text("keep\n")
    before = sorted(precious.rglob("*"))
    run.pending()
    for which in ("units/U1", "units", "jobs"):
        with case(which):
            place = run.run_dir() / which
            place.rename(run.base / "moved-away")
            place.symlink_to(precious)
            assert abandon(run).word in ("UNREADABLE", "BLOCKED")
            assert sorted(precious.rglob("*")) == before
            place.unlink()
            (run.base / "moved-away").rename(place)
    abandon(run).expect("CLEANED")


def test_an_integration_lock_that_a_worker_made_is_never_ours(run: Host) -> None:
    run.pending()
    path = run.call("integration-acquire", "--run-id", "r1", "--unit-id", "U1").expect("ACQUIRED").body["path"]
    names = ("--run-id", "r1", "--unit-id", "U1")
    real = json.loads(Path(path).read_text())
    run.private(Path(path), json.dumps({**real, "nonce": "f" * 48}))
    run.call("preflight", *names, "--lock-token", real["nonce"]).expect("BLOCKED")
    run.call("preflight", *names, "--lock-token", "f" * 48).expect("REFUSED")
    run.private(Path(path), "garbage")
    run.call("preflight", *names, "--lock-token", real["nonce"]).expect("UNREADABLE")
    run.private(Path(path), json.dumps(real))
    run.call("preflight", *names, "--lock-token", real["nonce"]).expect("PREFLIGHT_OK")
