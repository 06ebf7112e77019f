"""What holds a worker inside its workspace: which means is in force, and how it is put on before exec.

A CLI with a kernel sandbox of its own keeps it. Every other one may write only to the workspace, to the folder for
its raw result, to a temporary folder of its own and to its own state folders; Landlock enforces that, and bubblewrap
where Landlock is missing or too old. The workspace's `.git` is kept read-only by a mount, because Landlock cannot
take a file out of an allowed folder; the Git common directory is not among the allowed ones. Reading is not
restricted. Sources: `spec/agents.md`, protocol section 13, seed 004 ("Sanction before egress").
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from adapters.config import config_path, home_folder, load_config
from adapters.environment import find_executable
from adapters.errors import ConfigError, Unavailable
from adapters.installation import installation, located
from adapters.route_table import Route
from adapters.routes import Adapter

Kind = Literal["cli-sandbox", "landlock", "bubblewrap", "cooperative"]
Mode = Literal["on", "off", "require"]

REQUIRE = "require:"
"""A restriction that begins so is a requirement: a route that cannot enforce it is unavailable."""

ENFORCED_CONFINEMENT = f"{REQUIRE}enforced-confinement"
NO_NETWORK = f"{REQUIRE}no-network"

HOME = "your home folder"
"""The name under which the home folder is kept out of every state folder."""

_NO_NETWORK_ROUTES = ("codex",)
_LANDLOCK_ENFORCES = 3
_BUBBLEWRAP_SECONDS = 5.0
_GIT_POINTER_BYTES = 4096


class Ground(msgspec.Struct, frozen=True):
    """What this machine offers: the Landlock ABI (0: none), and a bubblewrap that works (looked for only below 3)."""

    landlock_abi: int
    bubblewrap: str | None = None


class Posture(msgspec.Struct, frozen=True):
    """What holds the worker. `enforced`: the kernel refuses every write outside, whatever the worker wants."""

    kind: Kind
    enforced: bool
    abi: int | None = None
    note: str | None = None


class Assessed(msgspec.Struct, frozen=True):
    """What is configured, what it comes to here, and the bubblewrap to use for it."""

    mode: Mode
    posture: Posture
    bubblewrap: str | None = None


class Demand(msgspec.Struct, frozen=True):
    """What is demanded of a route, and who demands it."""

    confinement: str | None = None
    others: tuple[str, ...] = ()


class Needs(msgspec.Struct, frozen=True):
    """What a CLI needs to write beside its workspace: `state` folders and `files`. `trusted` entries in them are what
    a later session of the user's obeys or runs.
    """

    state: tuple[str, ...]
    files: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()


class Fence(msgspec.Struct, frozen=True):
    """Where the worker may write: below `folders`, and the `files`; `shielded` stays read-only all the same."""

    folders: tuple[str, ...]
    files: tuple[str, ...] = ()
    shielded: tuple[str, ...] = ()


def survey(path: str) -> Ground:
    """Look at the machine; `path` is where programs are searched."""
    from adapters import landlock

    abi = landlock.supported_abi()
    return Ground(abi, _working_bubblewrap(path) if abi < _LANDLOCK_ENFORCES else None)


def decide(own: str, mode: Mode, ground: Ground) -> Posture:
    """The best posture that `ground` offers to a CLI whose `own` confinement is `cli-sandbox` or else. Pure."""
    if own == "cli-sandbox":
        return Posture("cli-sandbox", True)
    if mode == "off":
        return Posture("cooperative", False, note='switched off: confinement = "off" in the user\'s configuration')
    abi = ground.landlock_abi
    if abi >= _LANDLOCK_ENFORCES:
        return Posture("landlock", True, abi)
    if ground.bubblewrap is not None:
        return Posture("bubblewrap", True)
    if abi > 0:
        # Older kernels let a confined process truncate any file that its user may write.
        note = f"Landlock ABI {abi} does not hold back truncation ({_LANDLOCK_ENFORCES} does), and no bubblewrap works"
        return Posture("landlock", False, abi, note)
    return Posture("cooperative", False, note="this kernel has no Landlock, and no bubblewrap works here")


def assess(adapter: Adapter, environ: Mapping[str, str], path: str, outside: Path | None = None) -> Assessed:
    """What configuration and machine come to for this CLI; `path` is where programs are searched.

    A CLI with a sandbox of its own needs neither. `outside` is a directory that must not contain the configuration.
    Raises `Unavailable` when that cannot be trusted or contradicts itself.
    """
    if adapter.confinement == "cli-sandbox":
        return Assessed("on", decide(adapter.confinement, "on", Ground(0)))
    mode = _mode(adapter, environ, outside)
    ground = Ground(0) if mode == "off" else survey(path)
    return Assessed(mode, decide(adapter.confinement, mode, ground), ground.bubblewrap)


def demanded(environment: bool, mode: Mode, restrictions: Sequence[str]) -> Demand:
    """What the caller's environment, the user's configuration and the sanctioned restrictions demand. Pure."""
    sources = (
        (environment, "CE_WORK_REQUIRE_ENFORCED_CONFINEMENT=1"),
        (mode == "require", 'confinement = "require" in the user\'s configuration'),
        (ENFORCED_CONFINEMENT in restrictions, f"restriction {ENFORCED_CONFINEMENT!r}"),
    )
    who = next((name for applies, name in sources if applies), None)
    others = tuple(text for text in restrictions if text.startswith(REQUIRE) and text != ENFORCED_CONFINEMENT)
    return Demand(who, others)


def check(route: Route, posture: Posture, demand: Demand) -> None:
    """Raise `Unavailable` when `posture` does not meet `demand`. Pure."""
    if demand.confinement is not None and not posture.enforced:
        raise Unavailable(
            f"enforced confinement is required ({demand.confinement}), and route {route.name!r} has only cooperative "
            f"restrictions here: {posture.note}"
        )
    for restriction in demand.others:
        if restriction != NO_NETWORK:
            raise Unavailable(f"restriction {restriction!r} is unknown and cannot be enforced; drop it or correct it")
        if route.name not in _NO_NETWORK_ROUTES:
            raise Unavailable(f"restriction {restriction!r} cannot be enforced on route {route.name!r}")


def holder(restriction: str, posture: Posture) -> str:
    """Who holds `restriction` while `posture` is in force, for disclosure: a means of the kernel or `cooperative`."""
    if restriction == ENFORCED_CONFINEMENT and posture.enforced:
        return posture.kind
    if restriction == NO_NETWORK and posture.kind == "cli-sandbox":
        return posture.kind
    return "cooperative"


class Confinement:
    """One posture on one fence, ready to be put on a child."""

    def __init__(self, assessed: Assessed, fence: Fence, workspace: Path) -> None:
        self.posture = assessed.posture
        self.fence = fence
        self._bubblewrap = assessed.bubblewrap
        self._workspace = str(workspace)
        # Shared with the child, which reports here that its mounts are in place.
        self._told = mmap.mmap(-1, 1)

    def wrap(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """The command line that runs `argv` confined."""
        if self.posture.kind != "bubblewrap" or self._bubblewrap is None:
            return argv
        writable = [word for path in (*self.fence.folders, *self.fence.files) for word in ("--bind", path, path)]
        shielded = [word for path in self.fence.shielded for word in ("--ro-bind", path, path)]
        base = (self._bubblewrap, "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev")
        return (*base, *writable, *shielded, "--chdir", self._workspace, "--", *argv)

    def before_exec(self) -> Callable[[], None] | None:
        """What the child has to do just before exec; it raises `OSError` when the rules cannot be put on."""
        if self.posture.kind != "landlock" or self.posture.abi is None:
            return None
        from adapters import landlock

        rules = landlock.Rules(
            self.posture.abi, tuple(map(os.fsencode, self.fence.folders)), tuple(map(os.fsencode, self.fence.files))
        )
        shielded = tuple(map(os.fsencode, self.fence.shielded))
        told = self._told

        with_memory = msgspec.structs.replace(rules, folders=(*rules.folders, landlock.SHARED_MEMORY))

        def confine() -> None:
            chosen = rules
            try:
                landlock.shield(shielded)
                told[0] = 1
                landlock.own_shared_memory()
                chosen = with_memory
            except OSError:
                # No namespaces for this user: the receipt says so, and the controller compares `.git` afterwards.
                pass
            landlock.restrict(chosen)

        return confine

    def note(self) -> str | None:
        """What the receipt has to say beside the kind; to be asked after the run."""
        if self.posture.note is not None or self.posture.kind != "landlock" or not self.fence.shielded:
            return self.posture.note
        if self._told[0]:
            return "the workspace's .git is read-only"
        return "the workspace's .git is not read-only: no mount namespace for this user"


def temporary(route: Route, folder: Path) -> dict[str, str]:
    """The variables that make `folder` the CLI's place for temporary files."""
    return {name: str(folder) for name in ("TMPDIR", *installation(route.harness).temporary)}


def needs(route: Route, adapter: Adapter, environment: Mapping[str, str], executable: str) -> Needs:
    """What the CLI at `executable` needs where `environment` is its own."""
    known = installation(route.harness)
    home = home_folder(environment)
    configured = tuple(os.path.join(home, path[2:]) if path.startswith("~/") else path for path in adapter.state)
    return Needs(
        state=(*located(known.state, environment, home), *configured),
        files=located(known.state_files, environment, home),
        trusted=(*located(known.trusted, environment, home), os.path.dirname(os.path.realpath(executable))),
    )


def fence_of(workspace: Path, own: Sequence[Path], wanted: Needs, keep_out: Mapping[str, Path]) -> Fence:
    """The fence of one call; missing state folders are made.

    `own` are folders that the adapter made for this call. No state folder may hold one of `keep_out` (named for
    people), the Git directories of `workspace` or `own`, nor lie in the checkout to which those belong: raises
    `Unavailable` with the two paths.
    """
    git = git_directories(workspace)
    apart = {**keep_out, "the workspace": workspace, "the adapter's scratch folder": own[0]}
    folders: list[str] = [str(workspace), *map(str, own)]
    files: list[str] = [os.path.realpath(path) for path in wanted.files if os.path.isfile(path)]
    for path in wanted.state:
        real = os.path.realpath(path)
        _check_apart(path, real, apart, git)
        if os.path.isfile(real):
            files.append(real)
        elif _made(real) and not any(_holds(folder, real) for folder in folders):
            # One within another needs no rule; and, written by an earlier worker, it could lead anywhere by now.
            folders.append(real)
    shielded = [os.path.join(workspace, ".git"), *map(os.path.realpath, wanted.trusted)]
    return Fence(
        tuple(folders),
        tuple(files),
        tuple(path for path in shielded if os.path.exists(path) and any(_beneath(f, path) for f in folders)),
    )


def git_directories(workspace: Path) -> tuple[Path, ...]:
    """The workspace's own Git directory and the common one, as its `.git` and `commondir` say; () without one."""
    pointer = workspace / ".git"
    try:
        if pointer.is_dir():
            return (pointer.resolve(),)
        own = workspace / _line(pointer).removeprefix("gitdir:").strip()
        common = own / _line(own / "commondir") if (own / "commondir").is_file() else own
    except OSError:
        return ()
    return tuple(dict.fromkeys((own.resolve(), common.resolve())))


def _mode(adapter: Adapter, environ: Mapping[str, str], outside: Path | None) -> Mode:
    try:
        everywhere = load_config(config_path(environ), outside).confinement
    except ConfigError as error:
        raise Unavailable(f"configuration refused: {error}") from None
    if everywhere == "require" and adapter.confined == "off":
        raise Unavailable(
            'the user\'s configuration contradicts itself: confinement = "require" for every route, and "off" for this '
            "command; remove one of them"
        )
    return everywhere if everywhere == "require" else adapter.confined


def _check_apart(path: str, real: str, apart: Mapping[str, Path], git: Sequence[Path]) -> None:
    held = [*apart.items(), *(("a Git directory of the repository", folder) for folder in git)]
    for what, other in held:
        if _holds(real, os.path.realpath(other)):
            raise Unavailable(f"the worker cannot be confined: state folder {path} holds {what} ({other})")
    for folder in git:
        if _holds(str(folder), real):
            raise Unavailable(f"the worker cannot be confined: state folder {path} lies in {folder}")
        checkout = str(folder.parent)
        home = apart.get(HOME)
        # A home folder that is a repository itself has every state folder in its checkout.
        in_home = home is not None and _holds(checkout, os.path.realpath(home))
        if folder.name == ".git" and _holds(checkout, real) and not in_home:
            raise Unavailable(f"the worker cannot be confined: state folder {path} lies in the checkout {checkout}")


def _holds(folder: str, path: str) -> bool:
    return path == folder or _beneath(folder, path)


def _beneath(folder: str, path: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _made(folder: str) -> bool:
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
    except OSError:
        # What cannot be made could not be written either; the CLI has to cope as it would without us.
        return False
    return True


def _line(path: Path) -> str:
    with path.open("rb") as file:
        return os.fsdecode(file.read(_GIT_POINTER_BYTES)).split("\n", 1)[0]


def _working_bubblewrap(path: str) -> str | None:
    import subprocess

    found = find_executable("bwrap", path)
    if found is None:
        return None
    argv = (found, "--ro-bind", "/", "/", "--dev", "/dev", "--", "true")
    try:
        tried = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_BUBBLEWRAP_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found if tried.returncode == 0 else None
