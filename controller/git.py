"""The only module that runs git: scrubbed environment, no hooks, no prompts, bytes, a timeout (design.md section 5)."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from controller import interrupts
from controller.errors import Blocked

# Kept of GIT_*: who the user is and where the user's own configuration lies. Everything else that begins with GIT_
# can select another repository, index, object store or behaviour (max-sixty/worktrunk#3373): a superset of
# `git rev-parse --local-env-vars` of every version, without a process to ask.
_KEPT = frozenset(
    {
        "GIT_AUTHOR_NAME",
        "GIT_AUTHOR_EMAIL",
        "GIT_AUTHOR_DATE",
        "GIT_COMMITTER_NAME",
        "GIT_COMMITTER_EMAIL",
        "GIT_COMMITTER_DATE",
        "GIT_CONFIG_GLOBAL",
        "GIT_CONFIG_SYSTEM",
        "GIT_CONFIG_NOSYSTEM",
        "GIT_EXEC_PATH",
    }
)
_FORCED = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",  # a `git replace` made by a worker must not change what a commit means
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "GIT_EDITOR": "false",
    "GIT_PAGER": "cat",
}
_OPTIONS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.splitIndex=false",
    "core.quotePath=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "commit.gpgSign=false",
    "submodule.recurse=false",
    "advice.detachedHead=false",
    "status.relativePaths=false",
    "status.renames=false",
    "core.fsync=objects,derived-metadata,index,reference",
)
DEFAULT_TIMEOUT = 300.0


def scrubbed(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without any variable that selects a repository; for git and for verification commands."""
    source = os.environ if environ is None else environ
    return {
        name: value
        for name, value in source.items()
        if (not name.startswith("GIT_") or name in _KEPT) and not name.startswith("UNIT_WORKSPACE_")
    }


def _path(value: str) -> str:
    """PATH without relative and empty entries: in a repository they would run its own `./git`."""
    return os.pathsep.join(part for part in value.split(os.pathsep) if os.path.isabs(part)) or os.defpath


class Git:
    """Runs git in one directory; children hold `hold` (lock descriptors): a killed controller's git is waited for.

    git runs in a process group of its own: a Ctrl-C meant for the controller does not stop git between a file and its
    index entry.
    """

    def __init__(
        self,
        cwd: Path,
        *,
        hold: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.cwd = cwd
        self.hold = tuple(hold)
        self.env = {**scrubbed(), **_FORCED, **(env or {})}
        self.env["PATH"] = _path(self.env.get("PATH", os.defpath))
        if "core.hooksPath=/dev/null" not in options:
            options = (*_OPTIONS, *options)
        self.options = tuple(options)

    def at(self, cwd: Path, *, env: Mapping[str, str] | None = None, options: Sequence[str] = ()) -> Git:
        """The same git elsewhere, with more environment or configuration."""
        other = Git(cwd, hold=self.hold, options=(*self.options, *options))
        other.env = {**self.env, **(env or {})}
        return other

    def call(
        self,
        *args: str | bytes,
        stdin: bytes | None = None,
        stdin_file: IO[bytes] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run git and return its result whatever the exit code; `Blocked` on timeout or when git cannot start."""
        interrupts.check()
        argv: list[str | bytes] = ["git"]
        for option in self.options:
            argv += ["-c", option]
        argv += args
        try:
            return subprocess.run(
                argv,
                cwd=self.cwd,
                env=self.env,
                input=stdin,
                stdin=None if stdin is not None else stdin_file or subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=timeout,
                pass_fds=self.hold,
                process_group=0,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Blocked(
                f"git {_words(args)} did not end within {timeout:.0f} s",
                detail={"git": _words(args), "timeout_seconds": timeout},
                remedy="see what holds the repository (a slow filter or file system), then run the command again",
            ) from None
        except FileNotFoundError as error:
            missing = "the directory" if not self.cwd.is_dir() else "git"
            raise Blocked(
                f"cannot run git: {error}",
                expected=f"{missing} at {self.cwd if missing != 'git' else 'PATH'}",
                found="nothing",
                remedy="install git, or put the directory back",
            ) from None
        except OSError as error:
            raise Blocked(f"cannot run git in {self.cwd}: {error}", found=os.strerror(error.errno or 0)) from None

    def run(
        self,
        *args: str | bytes,
        stdin: bytes | None = None,
        stdin_file: IO[bytes] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> bytes:
        """Run git and return its standard output; `Blocked` with git's own message when it fails."""
        done = self.call(*args, stdin=stdin, stdin_file=stdin_file, timeout=timeout)
        if done.returncode != 0:
            raise self.failure(args, done)
        return done.stdout

    @staticmethod
    def failure(args: Sequence[str | bytes], done: subprocess.CompletedProcess[bytes]) -> Blocked:
        """The refusal for a failed git call."""
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        # Git's advice follows the line that names the file or ref; the advice alone says nothing.
        lines = [line for line in lines if line.startswith(("fatal: ", "error: "))] or lines
        reason = "; ".join(lines[-3:]) or f"exit {done.returncode}"
        return Blocked(
            f"git {_words(args)} failed: {reason}",
            detail={"git": _words(args), "git_exit": done.returncode},
            expected="exit 0",
            found=reason,
            remedy="resolve what git reports, then run the command again",
        )


def _words(args: Sequence[str | bytes]) -> str:
    text = [os.fsdecode(arg) for arg in args]
    words = [word for word in text if not word.startswith("-")]
    return " ".join(words[:2]) if words and words[0] in ("worktree", "config") else (words[0] if words else "")


def blob_id(data: bytes, algorithm: str) -> str:
    """The object id of a blob with exactly these bytes."""
    digest = hashlib.new(algorithm, b"blob %d\0" % len(data), usedforsecurity=False)
    digest.update(data)
    return digest.hexdigest()
