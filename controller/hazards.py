"""What an apply could destroy: decided before anything is touched (design.md section 6). Only reads."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from controller.errors import Blocked


class Change(msgspec.Struct, frozen=True):
    """One path of a tree difference; an absent side has mode `000000`."""

    path: str
    old_mode: str
    new_mode: str
    old_oid: str
    new_oid: str

    @property
    def added(self) -> bool:
        """Whether the path is new."""
        return self.old_mode == "000000"

    @property
    def removed(self) -> bool:
        """Whether the path goes away."""
        return self.new_mode == "000000"


def parse_raw(out: bytes) -> tuple[Change, ...]:
    """Parse `git diff-tree -r -z --no-renames --raw`. Pure."""
    fields = out.split(b"\0")[:-1]
    changes = []
    for header, path in zip(fields[::2], fields[1::2], strict=True):
        old_mode, new_mode, old_oid, new_oid, _ = header[1:].decode().split(" ")
        changes.append(Change(os.fsdecode(path), old_mode, new_mode, old_oid, new_oid))
    return tuple(changes)


def parse_entries(out: bytes) -> Iterator[tuple[str, str, str, str]]:
    """Parse `git ls-files -v --stage -z`: (tag, mode, object id, path). Pure."""
    for record in out.split(b"\0")[:-1]:
        head, _, path = record.partition(b"\t")
        tag, mode, oid, _stage = head.decode().split(" ")
        yield tag, mode, oid, os.fsdecode(path)


def hidden(entries: bytes, changes: Iterable[Change]) -> list[str]:
    """Touched paths behind `assume-unchanged` or `skip-worktree`: edits there are invisible to git status."""
    touched = {change.path for change in changes}
    return sorted(
        path for tag, _, _, path in parse_entries(entries) if path in touched and (tag.islower() or tag == "S")
    )


# `.git` as NTFS (short name, trailing blanks and dots, streams) and HFS+ (code points it ignores) read it; Git refuses
# such names in an index, on every system.
_GIT_NAME = re.compile(r"(?:\.git|git~1)[ .]*(?:[:\\].*)?", re.IGNORECASE | re.DOTALL)
_HFS_IGNORES = dict.fromkeys((*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF))


def names_git(name: str) -> bool:
    """Whether one component of a path is `.git` on some file system."""
    return bool(_GIT_NAME.fullmatch(name.translate(_HFS_IGNORES)))


def _key(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()


def collisions(entries: bytes, changes: Iterable[Change]) -> list[str]:
    """Added paths that differ from another path, or from a folder of one, only in case or Unicode form."""
    changes = list(changes)
    gone = {change.path for change in changes if change.removed}
    added = [change.path for change in changes if change.added]
    if not added:
        return []
    names: dict[str, set[str]] = {}
    for path in [path for _, _, _, path in parse_entries(entries) if path not in gone] + added:
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            prefix = "/".join(parts[:count])
            names.setdefault(_key(prefix), set()).add(prefix)
    return sorted(
        path
        for path in added
        if any(len(names[_key("/".join(path.split("/")[:count]))]) > 1 for count in range(1, path.count("/") + 2))
    )


def standing(toplevel: str, tracked: set[str], changes: Iterable[Change]) -> list[str]:
    """Files that are not in Git and stand where the unit adds or retypes something, or where a folder must go."""
    found: set[str] = set()
    changes = list(changes)
    gone = {change.path for change in changes if change.removed}
    for change in changes:
        if change.removed:
            continue
        path = Path(toplevel) / change.path
        for parent in reversed(path.relative_to(toplevel).parents[:-1]):
            name = str(parent)
            info = _lstat(Path(toplevel) / parent)
            if info is None:
                break
            if not stat.S_ISDIR(info.st_mode):
                if name not in tracked or name not in gone:
                    found.add(name)
                break
        else:
            info = _lstat(path)
            if info is None or (change.path in tracked and not stat.S_ISDIR(info.st_mode)):
                continue
            if stat.S_ISDIR(info.st_mode):
                found.update(_untracked_below(toplevel, change.path, tracked))
            elif change.path not in tracked:
                found.add(change.path)
    return sorted(found)


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _untracked_below(toplevel: str, folder: str, tracked: set[str]) -> Iterator[str]:
    for base, folders, files in os.walk(Path(toplevel) / folder):
        links = [name for name in folders if os.path.islink(os.path.join(base, name))]
        for name in files + links:
            path = os.path.relpath(os.path.join(base, name), toplevel)
            if path not in tracked:
                yield path


def require_safe(toplevel: str, entries: bytes, changes: tuple[Change, ...]) -> None:
    """`Blocked` naming the paths when applying (or restoring after) these changes could destroy bytes not in Git."""
    tracked = {path for _, _, _, path in parse_entries(entries)}
    blocked = hidden(entries, changes)
    if blocked:
        raise Blocked(
            "the unit touches paths that are marked assume-unchanged or skip-worktree",
            detail={"reason": "hidden index entries", "paths": blocked[:100], "path_count": len(blocked)},
            expected="plain index entries on the unit's paths",
            found=blocked[0],
            remedy="git update-index --no-assume-unchanged --no-skip-worktree on them, and keep your edits elsewhere",
        )
    blocked = standing(toplevel, tracked, changes)
    if blocked:
        raise Blocked(
            "files that are not in Git stand where the unit writes",
            detail={
                "reason": "untracked or ignored files in the way",
                "paths": blocked[:100],
                "path_count": len(blocked),
            },
            expected="nothing on the paths that the unit adds",
            found=blocked[0],
            remedy="move these files away; nothing was touched",
        )
    blocked = collisions(entries, changes)
    if blocked:
        raise Blocked(
            "the unit adds paths that differ from others only in case or Unicode form",
            detail={"reason": "path collision", "paths": blocked[:100], "path_count": len(blocked)},
            expected="names that stay apart on every file system",
            found=blocked[0],
            remedy="let the unit use another name",
        )
