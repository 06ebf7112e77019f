"""Copies what a change of the canonical checkout would destroy and no Git object gives back (design.md section 6)."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from controller import records as r
from controller import run_root
from controller.run import OpenRun
from controller.shapes import Recovered
from runner import private

_CHUNK = 1 << 20
_NAME_MAX = 200
_PATH_MAX = 3000

Wanted = Mapping[str, Collection[str]]
"""Path to the object ids of the contents that Git can give back there."""


def file_blob_id(path: Path, algorithm: str) -> str | None:
    """The object id of a blob with exactly the bytes of a file, or of a link's text; None for anything else."""
    info = os.lstat(path)
    if stat.S_ISLNK(info.st_mode):
        data = os.fsencode(os.readlink(path))
        return hashlib.new(algorithm, b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    if not stat.S_ISREG(info.st_mode):
        return None
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.new(algorithm, b"blob %d\0" % size, usedforsecurity=False)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _same_bytes(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and os.readlink(one) == os.readlink(other)
    try:
        with open(one, "rb") as a, open(other, "rb") as b:
            if os.fstat(a.fileno()).st_size != os.fstat(b.fileno()).st_size:
                return False
            while chunk := a.read(_CHUNK):
                if chunk != b.read(_CHUNK):
                    return False
            return not b.read(1)
    except OSError:
        return False


def irreproducible(run: OpenRun, files: Mapping[str, Path], wanted: Wanted, indexes: Iterable[Path]) -> list[str]:
    """The paths whose bytes on disk (`files`) Git cannot give back.

    Git can when they are an object's, or when it writes just these bytes from an entry of one of `indexes` with the
    user's conversions. What a clean filter says is no proof: it may drop bytes (nbstripout), and then both look equal.
    """
    algorithm = run.state.repository.object_format
    with run_root.trusted():
        open_ones = [
            path
            for path, file in files.items()
            if (oid := file_blob_id(file, algorithm)) is not None and oid not in wanted.get(path, ())
        ]
    more = iter(indexes)  # perhaps made only when asked for
    while asked := [path for path in open_ones if wanted.get(path)]:
        index = next(more, None)
        if index is None:
            break
        given = _written_by_git(run, index, asked)
        open_ones = [path for path in open_ones if path not in given or not _same_bytes(files[path], given[path])]
    return open_ones


def _written_by_git(run: OpenRun, index: Path, paths: list[str]) -> dict[str, Path]:
    """What Git would write for the entries of an index, in a private folder that the next call empties."""
    folder = scratch(run) / "written"
    run_root.remove_tree(folder)
    if not index.exists() or index.stat().st_size == 0:
        return {}
    run_root.make_dir(folder)
    git = run.git.at(run.git.cwd, env={"GIT_INDEX_FILE": str(index)})
    stdin = b"".join(os.fsencode(path) + b"\0" for path in paths)
    # A path that the index has not is an error, after all the others were written.
    git.call("checkout-index", "-q", f"--prefix={folder}/", "-z", "--stdin", stdin=stdin, timeout=3600.0)
    return {path: folder / path for path in paths if os.path.lexists(folder / path)}


def scratch(run: OpenRun) -> Path:
    """A private folder for what one command needs for a moment."""
    folder = run.directory / "scratch"
    run_root.make_dir(folder)
    return folder


def clear_scratch(run: OpenRun) -> None:
    """Remove it, also what a killed command left there."""
    run_root.remove_tree(run.directory / "scratch")


def copy(run: OpenRun, files: Mapping[str, Path]) -> tuple[Recovered, ...]:
    """Copy files, durably, into a new folder of `recovered/`; what the run has already copied is not copied again."""
    known = {
        (item.path, item.sha256): item
        for entry in run.entries
        if isinstance(entry.data, r.BytesRecovered)
        for item in entry.data.recovered
        if os.path.lexists(item.copy)
    }
    base = run.directory / "recovered"
    target: Path | None = None
    copies = []
    for number, (path, file) in enumerate(files.items()):
        with run_root.trusted():
            if known:
                found = known.get((path, _sha256(file)))
                if found is not None:
                    copies.append(found)
                    continue
            if target is None:
                target = _new_folder(run, base)
            place = _place(target, path, number)
            made = _copy(file, place)
            if made is not None:
                copies.append(Recovered(path=path, copy=str(place), sha256=made[0], bytes=made[1]))
    return tuple(copies)


def _new_folder(run: OpenRun, base: Path) -> Path:
    run_root.make_dir(base)
    _sweep_unrecorded(run, base)
    number = 1 + max((int(name) for name in os.listdir(base) if name.isdigit()), default=0)
    run_root.make_dir(base / str(number))
    return base / str(number)


def _place(target: Path, path: str, number: int) -> Path:
    """Where a copy goes: under its own path, unless that is too long below the run's folder."""
    place = target / path.rstrip("/")
    long = len(os.fsencode(place)) > _PATH_MAX or any(len(os.fsencode(part)) > _NAME_MAX for part in place.parts)
    if long:
        return target / f"long-name-{number}"
    for folder in reversed(Path(path).parents):
        private.ensure_private_dir(target / folder)
    return place


def _copy(source: Path, place: Path) -> tuple[str, int] | None:
    """SHA-256 and size of what was copied; None for a socket or FIFO, which holds no bytes."""
    info = os.lstat(source)
    if stat.S_ISLNK(info.st_mode):
        text = os.readlink(source)
        os.symlink(text, place)
        data = os.fsencode(text)
        private.fsync_dir(place.parent)
        return hashlib.sha256(data).hexdigest(), len(data)
    if not stat.S_ISREG(info.st_mode):
        return None
    digest = hashlib.sha256()
    size = 0
    with open(source, "rb") as file:
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, 0o600)
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                private.write_all(fd, chunk)
            os.fsync(fd)
        finally:
            os.close(fd)
    private.fsync_dir(place.parent)
    return digest.hexdigest(), size


def _sha256(file: Path) -> str:
    if file.is_symlink():
        return hashlib.sha256(os.fsencode(os.readlink(file))).hexdigest()
    if not stat.S_ISREG(os.lstat(file).st_mode):
        return ""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def staged(run: OpenRun, blobs: Mapping[str, str]) -> tuple[Recovered, ...]:
    """Copy the content of index entries that nothing else names; `blobs`: path to object id."""
    folder = scratch(run) / "staged"
    run_root.remove_tree(folder)
    run_root.make_dir(folder)
    files = {}
    for number, (path, oid) in enumerate(blobs.items()):
        done = run.git.call("cat-file", "blob", oid)
        if done.returncode == 0:
            run_root.write(folder / str(number), done.stdout)
            files[f"{path}.staged"] = folder / str(number)
    made = copy(run, files)
    run_root.remove_tree(folder)
    return made


def _sweep_unrecorded(run: OpenRun, base: Path) -> None:
    """Remove copies that a killed restore began: it had removed nothing yet, what they were made from still stands."""
    recorded = {
        Path(item.copy).relative_to(base).parts[0]
        for entry in run.entries
        if isinstance(entry.data, r.BytesRecovered)
        for item in entry.data.recovered
    }
    for name in os.listdir(base):
        if name not in recorded:
            run_root.remove_tree(base / name)
