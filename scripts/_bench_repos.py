"""The repositories the bench measures on, made with one `git fast-import` each."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOB = b"line one\nline two\n"
FILES_A_FOLDER = 200


@dataclass(frozen=True)
class Shape:
    """How large a repository is: tracked files, commits before the first run, ignored files on disk."""

    name: str
    files: int
    commits: int
    ignored: int


def shapes(*, quick: bool) -> list[Shape]:
    scale = 10 if quick else 1
    return [
        Shape("small", 20, 3, 0),
        Shape(f"{20_000 // scale:,} files", 20_000 // scale, 3, 0),
        Shape(f"{20_000 // scale:,} commits", 20, 20_000 // scale, 0),
        Shape(f"{50_000 // scale:,} ignored files", 20, 3, 50_000 // scale),
    ]


def make(shape: Shape, path: Path) -> None:
    """Create the repository at `path`: branch `main`, checked out, clean, with an author of its own."""
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", path], check=True)
    for key, value in (("user.name", "Bench"), ("user.email", "bench@localhost"), ("gc.auto", "0")):
        subprocess.run(["git", "-C", path, "config", key, value], check=True)
    stream = b"".join(_stream(shape))
    subprocess.run(["git", "-C", path, "fast-import", "--quiet"], input=stream, check=True)
    subprocess.run(["git", "-C", path, "reset", "--quiet", "--hard", "main"], check=True)
    for number in range(shape.ignored):
        file = path / "ignored" / str(number // FILES_A_FOLDER) / str(number)
        if number % FILES_A_FOLDER == 0:
            file.parent.mkdir(parents=True)
        file.touch()


def _stream(shape: Shape) -> Iterator[bytes]:
    yield b"blob\nmark :1\ndata %d\n%s\n" % (len(BLOB), BLOB)
    for number in range(shape.commits):
        yield b"commit refs/heads/main\ncommitter Bench <bench@localhost> %d +0000\n" % (1_700_000_000 + number)
        yield b"data 2\nc\n"
        if number == 0:
            yield b"M 644 inline .gitignore\ndata 9\n/ignored\n\n"
            for file in range(shape.files):
                yield b"M 644 :1 src/%d/file%d.txt\n" % (file // FILES_A_FOLDER, file)
        else:
            text = b"change %d\n" % number
            yield b"M 644 inline src/0/file0.txt\ndata %d\n%s\n" % (len(text), text)
