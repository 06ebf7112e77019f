"""A folder whose whole content can be put back as it was, at the same path and with the same folder inodes.

Paths are part of the state (worktree registrations), and so is the identity of two kinds of folder: the repository's
common directory and a unit's result directory. Folders therefore stay where they are and files are put back into them.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import msgspec


class _Node(msgspec.Struct, frozen=True):
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    ino: int


def _node(info: os.stat_result) -> _Node:
    return _Node(info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)


def _walk(top: str) -> dict[str, _Node]:
    """Relative path to lstat, folders before what is in them."""
    found: dict[str, _Node] = {}
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(os.path.join(top, folder)) as entries:
            for entry in entries:
                name = os.path.join(folder, entry.name)
                found[name] = _node(entry.stat(follow_symlinks=False))
                if entry.is_dir(follow_symlinks=False):
                    pending.append(name)
    return found


class Room:
    """`live` is where everything runs; `save` keeps a copy, `restore` puts it back."""

    def __init__(self, base: Path) -> None:
        self.live = base / "live"
        self._copy = base / "saved"
        self._vault = base / "vault"
        self.live.mkdir(parents=True)
        self._vault.mkdir()
        self._nodes: dict[str, _Node] = {}
        self._links: list[list[str]] = []
        self._shielded: dict[str, Path] = {}

    def save(self) -> None:
        """Keep what is in `live` now."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.live, self._copy, symlinks=True)
        self._nodes = _walk(str(self.live))
        by_inode: dict[int, list[str]] = {}
        for name, node in self._nodes.items():
            if not stat.S_ISDIR(node.mode):
                by_inode.setdefault(node.ino, []).append(name)
        self._links = [names for names in by_inode.values() if len(names) > 1]

    def shield(self, *folders: Path) -> None:
        """Put copies in the place of folders that may be deleted now although their identity is needed later."""
        for folder in folders:
            name = os.path.relpath(folder, self.live)
            saved = self._nodes.get(name)
            if saved is None or not folder.is_dir() or folder.stat().st_ino != saved.ino:
                continue
            original = self._vault / name.replace("/", "+")
            os.rename(folder, original)
            shutil.copytree(original, folder, symlinks=True)
            self._shielded[name] = original

    def unshield(self) -> None:
        """Put those originals back whose copies are still there whole: the story may go on with them."""
        for name, original in list(self._shielded.items()):
            folder = self.live / name
            if folder.is_dir() and _walk(str(folder)).keys() == _walk(str(original)).keys():
                shutil.rmtree(folder)
                os.rename(original, folder)
                del self._shielded[name]

    def restore(self) -> None:
        """Make `live` what it was at `save`."""
        live = str(self.live)
        for name, original in self._shielded.items():
            folder = self.live / name
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            os.rename(original, folder)
        self._shielded.clear()
        present = _walk(live)
        for name in sorted(present.keys() - self._nodes.keys(), key=len, reverse=True):
            _remove(os.path.join(live, name), present[name])
        folders = []
        for name, node in self._nodes.items():
            full, now = os.path.join(live, name), present.get(name)
            is_folder = stat.S_ISDIR(node.mode)
            if now == node and not is_folder:
                continue
            if now is not None and (not is_folder or not stat.S_ISDIR(now.mode)):
                _remove(full, now)
                now = None
            if is_folder:
                if now is None:
                    os.mkdir(full)
                os.chmod(full, stat.S_IMODE(node.mode))
                folders.append((full, node))
            else:
                shutil.copy2(os.path.join(self._copy, name), full, follow_symlinks=False)
                self._nodes[name] = _node(os.lstat(full))
        for first, *others in self._links:
            self._relink(first, others)
        for full, node in reversed(folders):
            os.utime(full, ns=(node.mtime_ns, node.mtime_ns))

    def _relink(self, first: str, others: list[str]) -> None:
        """Files that were one file under several names are one file again: a lock is proven by that."""
        paths = [self.live / name for name in (first, *others)]
        if len({path.lstat().st_ino for path in paths}) == 1:
            return
        for path in paths[1:]:
            path.unlink()
            os.link(paths[0], path, follow_symlinks=False)
        for name, path in zip((first, *others), paths, strict=True):
            self._nodes[name] = _node(path.lstat())


def _remove(path: str, node: _Node) -> None:
    if stat.S_ISDIR(node.mode):
        shutil.rmtree(path, ignore_errors=True)
    else:
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            pass
