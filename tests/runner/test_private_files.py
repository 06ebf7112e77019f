"""Private state is never read through a trick, never half written, never left to the umask."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.errors import Untrusted
from runner.private import (
    TEMP_PREFIX,
    check_private_dir,
    create_exclusive,
    ensure_private_dir,
    read_owned,
    read_private,
    sweep_temps,
    write_atomic,
)
from tests.runner.support import REPOSITORY


@pytest.fixture(params=[0o000, 0o022, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_modes_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    ensure_private_dir(tmp_path / "d")
    write_atomic(tmp_path / "d/a", b"1")
    create_exclusive(tmp_path / "d/b", b"2")
    assert [mode(tmp_path / "d"), mode(tmp_path / "d/a"), mode(tmp_path / "d/b")] == [0o700, 0o600, 0o600]
    after = os.umask(umask)
    assert after == umask, "the user's umask was changed"


def test_set_group_id_of_the_parent_does_not_make_a_directory_untrusted(tmp_path: Path) -> None:
    parent = tmp_path / "p"
    parent.mkdir()
    parent.chmod(0o2770)
    ensure_private_dir(parent / "d")
    assert mode(parent / "d") == 0o700
    assert check_private_dir(parent / "d").st_ino == (parent / "d").stat().st_ino


def test_a_directory_that_others_can_enter_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(Untrusted) as error:
        ensure_private_dir(tmp_path / "open")
    assert (error.value.path, error.value.expected, error.value.found) == (
        tmp_path / "open",
        "mode 0700",
        "mode 0755",
    )
    assert error.value.exit_code == 4


def test_a_link_is_not_followed_to_a_directory_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for name, found in (("link", "a symbolic link"), ("file", "something that is not a directory")):
        with pytest.raises(Untrusted) as error:
            ensure_private_dir(tmp_path / name)
        assert error.value.found == found
    with pytest.raises(FileNotFoundError):
        check_private_dir(tmp_path / "none")


def test_what_is_no_private_file_is_refused_and_never_blocks(tmp_path: Path) -> None:
    write_atomic(tmp_path / "good", b"bytes")
    (tmp_path / "link").symlink_to(tmp_path / "good")
    (tmp_path / "dir").mkdir()
    # Opening a FIFO without a writer would block for ever.
    os.mkfifo(tmp_path / "fifo", 0o600)
    write_atomic(tmp_path / "shared", b"bytes")
    (tmp_path / "shared").chmod(0o640)
    assert read_private(tmp_path / "good") == b"bytes"
    assert read_owned(tmp_path / "shared") == b"bytes"
    for name in ("link", "dir", "fifo", "shared"):
        with pytest.raises(Untrusted):
            read_private(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "none")


def test_a_file_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        path = tmp_path / "theirs"
        write_atomic(path, b"x")
        os.chown(path, 12345, -1)
        expected = "owner uid 0"
    else:
        path, expected = Path("/proc/version"), f"owner uid {os.geteuid()}"
    with pytest.raises(Untrusted) as error:
        read_private(path)
    assert error.value.expected == expected


def test_a_file_over_the_cap_is_refused_whole(tmp_path: Path) -> None:
    write_atomic(tmp_path / "f", b"x" * 11)
    assert read_private(tmp_path / "f", 11) == b"x" * 11
    assert read_private(tmp_path / "f", None) == b"x" * 11
    with pytest.raises(Untrusted):
        read_private(tmp_path / "f", 10)


def test_a_file_that_lies_about_its_size_cannot_pass_the_cap(tmp_path: Path) -> None:
    # The files of /proc say 0 bytes and give more, just as a file does that grows while it is read.
    assert Path("/proc/self/status").stat().st_size == 0
    with pytest.raises(Untrusted):
        read_owned(Path("/proc/self/status"), 100)


def test_an_existing_record_is_never_replaced_by_an_exclusive_create(tmp_path: Path) -> None:
    create_exclusive(tmp_path / "f", b"first")
    with pytest.raises(FileExistsError):
        create_exclusive(tmp_path / "f", b"second")
    (tmp_path / "dangling").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        create_exclusive(tmp_path / "dangling", b"second")
    assert (tmp_path / "f").read_bytes() == b"first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "f"]


def test_a_full_disk_leaves_the_old_bytes_and_no_litter(tmp_path: Path) -> None:
    write_atomic(tmp_path / "f", b"old")
    # A file size limit is the full disk that everybody has at hand: the write falls short, then fails.
    script = """
import resource, sys
from pathlib import Path
from runner.private import create_exclusive, write_atomic
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for write, name in ((write_atomic, "f"), (create_exclusive, "g")):
    try:
        write(Path(sys.argv[1]) / name, b"n" * 5000)
    except OSError:
        continue
    sys.exit("written")
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=REPOSITORY, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_a_kill_at_any_moment_leaves_whole_files_only(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from runner.private import create_exclusive, write_atomic
folder = Path(sys.argv[1])
print("go", flush=True)
for n in range(100000):
    create_exclusive(folder / f"made-{n}", bytes([n % 256]) * 30000)
    write_atomic(folder / "replaced", bytes([n % 256]) * 30000)
"""
    for turn in range(6):
        folder = tmp_path / str(turn)
        folder.mkdir()
        with subprocess.Popen(
            [sys.executable, "-c", script, str(folder)], cwd=REPOSITORY, stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.013 * (turn + 1))
            writer.send_signal(signal.SIGKILL)
        left = sweep_temps(folder)
        assert all(name.startswith(TEMP_PREFIX) for name in left)
        for path in folder.iterdir():
            data = path.read_bytes()
            assert len(data) == 30000
            assert data == data[:1] * 30000


def test_sweeping_temps_touches_nothing_else(tmp_path: Path) -> None:
    (tmp_path / f"{TEMP_PREFIX}1-a").write_text("half")
    (tmp_path / f"{TEMP_PREFIX}dir").mkdir()
    (tmp_path / "record").write_text("whole")
    assert sweep_temps(tmp_path) == [f"{TEMP_PREFIX}1-a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{TEMP_PREFIX}dir", "record"]
