"""The transport commit: the worker's complete tree as one commit on the base, built from bytes that were read once.

No `git add` runs in the workspace. The files are found with lstat against the manifest of `prepare`, read, hashed, and
handed to `git fast-import`; the base's attributes and the recorded configuration decide conversions (design.md 5).
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO

import msgspec

from controller import run_root, worktree
from controller.errors import Blocked, Unreadable
from controller.git import Git, blob_id
from controller.hazards import names_git
from controller.shadow import Shadow
from controller.shapes import Transport
from controller.worktree import FileEntry

_IDENTITY = "ce-work transport <ce-work@localhost>"
_ATTRIBUTES = ("text", "crlf", "eol", "ident", "filter", "working-tree-encoding")
_CHUNK = 1024 * 1024


class Content(msgspec.Struct, frozen=True):
    """One changed path: mode and object id that the transport gets; `converted` when the object is written already."""

    path: str
    mode: str
    oid: str
    converted: bool = False


class Delta(msgspec.Struct, frozen=True):
    """How the workspace differs from the base."""

    contents: tuple[Content, ...]
    deleted: tuple[str, ...]


def ref_name(run_id: str, unit_id: str) -> str:
    """The transport ref of section 5; no attempt component."""
    parts = (hashlib.sha256(name.encode()).hexdigest()[:20] for name in (run_id, unit_id))
    return "refs/ce-work/" + "/".join(parts)


def _base_tree(shadow: Shadow, base: str) -> dict[str, tuple[str, str]]:
    out = shadow.git.run("ls-tree", "-r", "-z", "--full-tree", base)
    found = {}
    for record in out.split(b"\0")[:-1]:
        head, _, path = record.partition(b"\t")
        mode, _kind, oid = head.decode().split(" ")
        found[os.fsdecode(path)] = (mode, oid)
    return found


def _require_transportable(base: dict[str, tuple[str, str]], entries: list[FileEntry]) -> None:
    gitlinks = {path for path, (mode, _) in base.items() if mode == "160000"}
    nested = [
        entry.path
        for entry in entries
        if any(map(names_git, entry.path.split("/"))) or any(entry.path.startswith(link + "/") for link in gitlinks)
    ]
    if nested:
        raise Blocked(
            f"submodule state cannot be transported implicitly: {nested[0]}",
            detail={"paths": nested[:100], "path_count": len(nested)},
            expected="no nested repository and no populated submodule",
            found=nested[0],
            remedy="let the worker leave submodules alone; abandon the attempt and prepare another",
        )
    special = [entry.path for entry in entries if not (stat.S_ISREG(entry.mode) or stat.S_ISLNK(entry.mode))]
    if special:
        raise Blocked(
            f"the workspace holds a file that Git cannot record: {special[0]}",
            detail={"paths": special[:100], "path_count": len(special)},
            expected="regular files and symbolic links",
            found="a FIFO, socket or device",
            remedy="abandon the attempt and prepare another",
        )


def _require_not_ignored(shadow: Shadow, added: list[str]) -> None:
    if not added:
        return
    # A file may be called `:(glob)x`, and check-ignore takes no literal pathspecs.
    stdin = b"".join(b"./" + os.fsencode(path) + b"\0" for path in added)
    done = shadow.in_workspace.call("check-ignore", "--no-index", "-z", "--stdin", stdin=stdin)
    if done.returncode not in (0, 1):
        raise Git.failure(("check-ignore",), done)
    ignored = [os.fsdecode(path.removeprefix(b"./")) for path in done.stdout.split(b"\0")[:-1]]
    if ignored:
        from controller.encoding import dumps

        raise Blocked(
            f"workspace contains ignored untracked output: {dumps(ignored[:20])}",
            detail={"ignored_paths": ignored[:100], "ignored_path_count": len(ignored)},
            expected="no ignored file that the base does not track",
            found=f"{len(ignored)} ignored path(s)",
            remedy="let the worker remove its byproducts, or track them; abandon the attempt and prepare another",
        )


def _mode(entry: FileEntry, old: str | None, filemode: bool) -> str:
    if stat.S_ISLNK(entry.mode):
        return "120000"
    if not filemode:
        return old if old in ("100644", "100755") else "100644"
    return "100755" if entry.mode & stat.S_IXUSR else "100644"


def _read(workspace: Path, entry: FileEntry) -> bytes:
    """The bytes (of a link, its target) of exactly the file that the walk saw; `Blocked` when it is another by now."""
    full = os.path.join(workspace, entry.path)
    try:
        if stat.S_ISLNK(entry.mode):
            data = os.fsencode(os.readlink(full))
            after = os.lstat(full)
        else:
            fd = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(fd, "rb") as file:
                before = os.fstat(fd)
                if not stat.S_ISREG(before.st_mode):
                    raise worktree.changing(entry.path)
                data = file.read()
                after = os.fstat(fd)
        if worktree.file_entry(entry.path, after) != entry:
            raise worktree.changing(entry.path)
        return data
    except MemoryError:
        raise Blocked(
            f"{entry.path} is too large to be pinned",
            detail={"path": entry.path, "bytes": entry.size},
            expected="a file that fits into memory",
            found=f"{entry.size} bytes",
            remedy="abandon the attempt and prepare another",
        ) from None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.ENOTDIR):
            raise worktree.changing(entry.path) from None
        raise Unreadable(
            f"cannot read {entry.path} in the workspace: {os.strerror(error.errno or 0)}",
            expected="a readable file",
            found=os.strerror(error.errno or 0),
        ) from None


def _conversions(shadow: Shadow, base: str, attribute_files: list[str], paths: list[str]) -> set[str]:
    """The paths whose bytes git converts on the way in, by the base's attributes and the recorded configuration."""
    shadow.git.run("read-tree", base)
    if attribute_files:  # `git hash-object` reads attributes from files only, never from the index
        stdin = b"".join(os.fsencode(path) + b"\0" for path in attribute_files)
        shadow.git.run("checkout-index", "-f", "-z", "--stdin", stdin=stdin)
    stdin = b"".join(os.fsencode(path) + b"\0" for path in paths)
    out = shadow.git.run("check-attr", "--cached", "-z", "--stdin", *_ATTRIBUTES, stdin=stdin)
    fields = out.split(b"\0")[:-1]
    found = set(paths) if shadow.values.get("core.autocrlf", "false") in ("true", "input") else set()
    for path, attribute, value in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
        if value == b"unset" and attribute in (b"text", b"crlf"):
            found.discard(os.fsdecode(path))
        elif value not in (b"unspecified", b"unset"):
            found.add(os.fsdecode(path))
    return found


class Builder:
    """Builds one transport. Git processes: ls-tree, check-ignore, fast-import; more only where bytes are converted."""

    def __init__(self, shadow: Shadow, base: str, manifest: dict[str, FileEntry], object_format: str) -> None:
        self.shadow = shadow
        self.base = base
        self.manifest = manifest
        self.object_format = object_format

    def delta(self, stream: IO[bytes]) -> Delta:
        """Find what changed; the new bytes go into `stream` as fast-import blobs marked 1, 2, …"""
        tree = _base_tree(self.shadow, self.base)
        entries = worktree.walk(self.shadow.workspace)
        _require_transportable(tree, entries)
        present = {entry.path for entry in entries}
        _require_not_ignored(self.shadow, sorted(present - tree.keys()))
        # Only what stood there at `prepare` can have been deleted: a sparse worktree holds a part of the base.
        deleted = tuple(
            sorted(
                path
                for path, (mode, _) in tree.items()
                if path in self.manifest and path not in present and mode != "160000"
            )
        )
        contents = []
        special: list[tuple[FileEntry, str]] = []
        has_filter = any(key.startswith("filter.") for key in self.shadow.values)
        filemode = self.shadow.flag("core.filemode", True)
        for entry in entries:
            if self.manifest.get(entry.path) == entry and entry.path in tree:
                continue
            old_mode, old_oid = tree.get(entry.path, (None, None))
            data = _read(self.shadow.workspace, entry)
            mode = _mode(entry, old_mode, filemode)
            if mode != "120000" and (has_filter or b"\r\n" in data or b"$Id" in data or self._encoded(data)):
                special.append((entry, mode))
                continue
            oid = blob_id(data, self.object_format)
            if (mode, oid) == (old_mode, old_oid):
                continue
            contents.append(Content(entry.path, mode, oid))
            _write_blob(stream, data)
        contents += self._special(tree, special, stream)
        return Delta(tuple(contents), deleted)

    @staticmethod
    def _encoded(data: bytes) -> bool:
        """Whether `working-tree-encoding` could say something else of these bytes than UTF-8 does."""
        return not data.isascii() or b"\0" in data[:8000]

    def _special(
        self, tree: dict[str, tuple[str, str]], special: list[tuple[FileEntry, str]], stream: IO[bytes]
    ) -> Iterator[Content]:
        if not special:
            return
        attribute_files = [path for path in tree if path.rpartition("/")[2] == ".gitattributes"]
        converted = _conversions(self.shadow, self.base, attribute_files, [entry.path for entry, _ in special])
        for entry, mode in special:
            path = entry.path
            data = _read(self.shadow.workspace, entry)
            if path in converted:
                args = ("hash-object", "-w", "-t", "blob", "--stdin", f"--path={path}")
                oid = self.shadow.git.run(*args, stdin=data).decode().strip()
            else:
                oid = blob_id(data, self.object_format)
            if tree.get(path) == (mode, oid):
                continue
            yield Content(path, mode, oid, path in converted)
            if path not in converted:
                _write_blob(stream, data)

    def commit(self, message: str, at: str, scratch: Path) -> tuple[str, str]:
        """Write the transport's objects; (commit, tree). The same workspace, base and time give the same commit."""
        when = int(datetime.fromisoformat(at).timestamp())
        with run_root.trusted(), open(scratch, "w+b") as stream:
            os.fchmod(stream.fileno(), 0o600)
            delta = self.delta(stream)
            stamp = f"{_IDENTITY} {when} +0000"
            text = message.encode()
            lines = [
                "commit refs/ce-work/transport",
                "mark :1000000000",
                f"author {stamp}",
                f"committer {stamp}",
                f"data {len(text)}",
            ]
            stream.write("\n".join(lines).encode() + b"\n" + text + b"\n")
            stream.write(f"from {self.base}\n".encode())
            for path in delta.deleted:
                stream.write(b"D " + quote(path) + b"\n")
            for item in delta.contents:
                stream.write(f"M {item.mode} {item.oid} ".encode() + quote(item.path) + b"\n")
            stream.write(b'\nls :1000000000 ""\nget-mark :1000000000\ndone\n')
            stream.flush()
            stream.seek(0)
            out = self.shadow.git.run("fast-import", "--quiet", "--done", "--force", stdin_file=stream, timeout=3600.0)
        scratch.unlink()
        tree_line, commit = out.decode().strip().split("\n")
        return commit, tree_line.split(" ")[2].split("\t")[0]


def _write_blob(stream: IO[bytes], data: bytes) -> None:
    stream.write(b"blob\ndata %d\n" % len(data))
    for start in range(0, len(data), _CHUNK):
        stream.write(data[start : start + _CHUNK])
    stream.write(b"\n")


def quote(path: str) -> bytes:
    """A path as fast-import reads it: C-style, every byte that is not plain as an octal escape."""
    out = bytearray(b'"')
    for byte in os.fsencode(path):
        if 32 <= byte < 127 and byte not in b'"\\':
            out.append(byte)
        else:
            out += b"\\%03o" % byte
    return bytes(out + b'"')


def describe(git: Git, base: str, tree: str, commit: str, ref: str) -> Transport:
    """The transport's record: inventory, changed paths (both names of a rename) and digest. One git process."""
    raw = git.run("diff-tree", "-r", "-M", "--name-status", "-z", base, commit)
    paths: list[str] = []
    fields = iter(raw.split(b"\0")[:-1])
    for code in fields:
        paths.append(os.fsdecode(next(fields)))
        if code[:1] in b"RC":
            paths.append(os.fsdecode(next(fields)))
    digest = hashlib.sha256(b"\0".join((base.encode(), tree.encode(), commit.encode(), raw))).hexdigest()
    return Transport(
        base=base,
        tree=tree,
        commit=commit,
        ref=ref,
        digest=digest,
        changed_paths=tuple(paths),
        inventory_b64=base64.b64encode(raw).decode(),
    )
