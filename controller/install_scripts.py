"""The drop-in entry points for a ce-work skill folder (section 18 row 28), for `install-scripts DIR`.

Hosts start the three scripts of a skill folder with whatever `python3` and PATH they have, also
`PATH=/usr/bin:/bin`. So each written copy names the interpreter that holds these packages.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from controller.errors import Blocked, Refused

NAMES = ("unit-workspace.py", "peer-job-runner.py", "cross-model-work.sh")
MARKER = b"# unit-workspace drop-in\n"
_BUNDLED = Path(__file__).with_name("_dropins")
_CHECKOUT = Path(__file__).parents[1] / "scripts"
_UNSET = re.compile(r'^(INTERPRETER ?= ?)""$', re.MULTILINE)
_HEAD_BYTES = 4096
_REINSTALL = "reinstall unit-workspace"


def install(directory: Path, *, interpreter: str, force: bool = False) -> list[Path]:
    """Write the three drop-ins into `directory` (mode 0755, each replaced atomically) and return their paths.

    `interpreter` is the absolute path of a Python that has these packages. Without `force`, a file of one of
    the three names that is not a drop-in of ours is REFUSED, before anything is written.
    """
    if not directory.is_dir():
        raise Refused(
            f"{directory} is no directory",
            expected="the scripts folder of a ce-work skill",
            remedy=f"create it first: mkdir -p {shlex.quote(str(directory))}",
        )
    if _source().resolve() == directory.resolve():
        raise Refused(f"{directory} holds the sources of the drop-ins", expected="the folder of a skill")
    if not (os.path.isabs(interpreter) and os.access(interpreter, os.X_OK)):
        raise Refused(
            f"{interpreter!r} is no interpreter that can be written into the scripts",
            expected="the absolute path of an executable Python",
        )
    targets = [directory.absolute() / name for name in NAMES]
    foreign = [] if force else [str(path) for path in targets if _is_foreign(path)]
    if foreign:
        raise Refused(
            f"would overwrite files that are not drop-ins of unit-workspace: {', '.join(foreign)}",
            detail={"foreign": foreign},
            remedy="move them away, or repeat with --force to replace them",
        )
    contents = [_with_interpreter(name, interpreter) for name in NAMES]
    try:
        for path, content in zip(targets, contents, strict=True):
            _replace(path, content)
    except OSError as error:
        raise Blocked(f"cannot write the drop-ins into {directory}: {error}") from None
    return targets


def _source() -> Path:
    """Where the templates lie: in the wheel, or in a source checkout."""
    return _BUNDLED if _BUNDLED.is_dir() else _CHECKOUT


def _is_foreign(path: Path) -> bool:
    """Whether something stands there that `install` did not write: another file, a link, a folder."""
    if not os.path.lexists(path):
        return False
    if path.is_symlink() or not path.is_file():
        return True
    with path.open("rb") as file:
        return MARKER not in file.read(_HEAD_BYTES)


def _with_interpreter(name: str, interpreter: str) -> bytes:
    try:
        source = (_source() / name).read_text("utf-8")
    except OSError as error:
        raise Blocked(
            f"the drop-in {name} is missing from this installation: {error}",
            remedy=_REINSTALL,
        ) from None
    quoted = shlex.quote(interpreter) if name.endswith(".sh") else repr(interpreter)
    filled, count = _UNSET.subn(lambda match: match[1] + quoted, source)
    if count != 1:
        raise Blocked(f"the drop-in {name} of this installation is damaged", remedy=_REINSTALL)
    return filled.encode("utf-8", "surrogateescape")


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o700)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), 0o755)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
