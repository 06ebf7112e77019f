"""What stands on paths of the checkout, reached through real folders only: a link is never followed out of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

from controller.kept import files_below, mark
from controller.shapes import Folder


def folders(paths: Iterable[str]) -> set[str]:
    """Every folder that these paths lie in."""
    found: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return found


def obstacle(top: Path, path: str) -> str | None:
    """The uppermost folder of a path that is none: a file, or a link, which is never followed out of the checkout."""
    for parent in reversed(Path(path).parents[:-1]):
        seen = mark(top / parent)
        if seen is None:
            return None
        if not stat.S_ISDIR(seen.mode):
            return str(parent)
    return None


def stands(top: Path, path: str) -> bool:
    """Whether something is at a path of the checkout, reached through real folders only."""
    return obstacle(top, path) is None and os.path.lexists(top / path)


def below(top: Path, path: str) -> list[str]:
    """The files at a path: itself, or everything in a folder that git shows as one entry."""
    if not stands(top, path):
        return []
    full = top / path
    if full.is_symlink() or not full.is_dir():
        return [path]
    return [f"{path.rstrip('/')}/{name}" for name in files_below(full)]


def prune(top: Path, path: str, keep: Collection[str]) -> None:
    """Remove the folders above a removed path that are empty now, but not those to keep."""
    for parent in Path(path).parents[:-1]:
        if str(parent) in keep:
            return
        try:
            os.rmdir(top / parent)
        except OSError:
            return


def folders_about(top: Path, paths: Iterable[str]) -> tuple[Folder, ...]:
    """The folders that exist above and on these paths, with their modes: an apply may remove those that are empty."""
    paths = list(paths)
    found = []
    for name in sorted(folders(paths)):
        seen = mark(top / name)
        if seen is not None and obstacle(top, f"{name}/x") is None:
            found.append(Folder(name, stat.S_IMODE(seen.mode)))
    for path in paths:
        if stands(top, path) and not (top / path).is_symlink() and (top / path).is_dir():
            for base, _, _ in os.walk(top / path):
                found.append(Folder(os.path.relpath(base, top), stat.S_IMODE(os.lstat(base).st_mode)))
    return tuple(found)


def remove_empty(top: Path, path: str) -> None:
    """Remove a folder that holds nothing but folders; anything else is left as it is."""
    if not stands(top, path) or (top / path).is_symlink() or not (top / path).is_dir():
        return
    for base, _, _ in os.walk(top / path, topdown=False):
        try:
            os.rmdir(base)
        except OSError:
            return
