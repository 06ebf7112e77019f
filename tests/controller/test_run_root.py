"""Trees are removed through no mount and beside no other remover's feet; a root with two names is one root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from controller import run_root
from tests.host import ROOT, Host

_UNSHARE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


def _can_mount() -> bool:
    program = shutil.which("unshare")
    return program is not None and subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _can_mount(), reason="no mount namespaces here")
def test_what_is_mounted_in_a_workspace_is_not_removed_with_it(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.make_repo()
    host.init().expect("READY")
    workspace = Path(host.prepare().expect("PREPARED").body["workspace"])
    data = tmp_path / "cache"
    data.mkdir()
    (data / "precious").write_text("x\n")
    (workspace / "a b").mkdir()
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    argv = [sys.executable, "-P", "-m", "controller", "cleanup", "--run-id", "r1", "--unit-id", "U1", "--abandon"]
    done = subprocess.run(
        [*_UNSHARE, "sh", "-c", script, "-", str(data), str(workspace / "a b"), *argv],
        env={**host.env, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("BLOCKED\n"), done
    assert f"umount '{workspace}/a b'" in done.stderr
    assert (data / "precious").exists() and (workspace / "f").exists(), "something was removed before it refused"
    host.call("resume", "--run-id", "r1").expect("RESUMED")
    assert not workspace.exists()


def test_two_that_remove_the_same_tree_do_not_trip_over_each_other(tmp_path: Path) -> None:
    for number in range(3):
        top = tmp_path / f"tree{number}"
        for at in range(30):
            folder = top / f"{at}" / "a" / "b" / "c"
            folder.mkdir(parents=True)
            for name in range(10):
                (folder / f"{name}").touch()
        faults: list[BaseException] = []

        def remove(top: Path = top, faults: list[BaseException] = faults) -> None:
            try:
                run_root.remove_tree(top)
            except BaseException as error:
                faults.append(error)

        removers = [threading.Thread(target=remove) for _ in range(3)]
        for remover in removers:
            remover.start()
        for remover in removers:
            remover.join()
        assert faults == [] and not top.exists()


def test_a_temporary_folder_that_is_another_name_of_tmp_lists_no_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owner" / "ce-work").mkdir(parents=True)
    (tmp_path / "alias").symlink_to("owner")
    monkeypatch.delenv("CE_WORK_RUNS_ROOT", raising=False)
    monkeypatch.delenv("CE_PEER_JOBS_ROOT", raising=False)
    monkeypatch.setattr(run_root, "_owner_roots", lambda: [tmp_path / "owner", tmp_path / "alias", tmp_path / "none"])
    assert run_root.lookup_roots() == [tmp_path / "owner" / "ce-work", tmp_path / "none" / "ce-work"]
