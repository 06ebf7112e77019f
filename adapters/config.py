"""The user's own commands: `$XDG_CONFIG_HOME/unit-workspace/config.toml` (default `~/.config`).

    [commands.reviewer]
    argv = ["agent", "--dir", "{workspace}", "--out", "{result_file}"]
    prompt = "stdin"          # or "file": then argv holds {prompt_file}
    env = ["TOOL_TOKEN"]      # names that may be passed on, beside the common ones
    state = ["~/.agent"]      # folders of its own that it may write beside the workspace
    confinement = "on"        # "off": its good will only; "require": unavailable where nothing can enforce it
    default = true            # what `auto` means when several commands are configured

At the top level, `confinement = "require"` says the same for every route whose CLI has no sandbox of its own.

Only the user's file counts, and only when nobody else could have written it: a repository that could name a
command would run programs of its choice on the user's account. Source: protocol section 18 row 23.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from adapters.errors import ConfigError
from adapters.files import read_regular
from adapters.route_table import model_allowed

MAX_CONFIG_BYTES = 1024 * 1024
PLACEHOLDERS = ("workspace", "prompt_file", "result_file")

_BRACED = re.compile(r"\{([A-Za-z][A-Za-z0-9_-]*)\}")
_NAME = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")]


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One CLI of the user's own."""

    argv: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    prompt: Literal["stdin", "file"] = "stdin"
    env: tuple[_NAME, ...] = ()
    state: tuple[str, ...] = ()
    confinement: Literal["on", "off", "require"] = "on"
    default: bool = False

    def __post_init__(self) -> None:
        program = self.argv[0]
        if not program or ("/" in program and not program.startswith("/")):
            raise ValueError(
                f"argv[0] must be a name on PATH or an absolute path, found {program!r}: "
                "the command runs inside the unit's workspace, whose content is the worker's"
            )
        if any("\0" in word for word in self.argv):
            raise ValueError("argv must not hold a NUL character")
        for word in self.argv:
            for name in _BRACED.findall(word):
                nearest = _nearest(name, PLACEHOLDERS)
                if name not in PLACEHOLDERS and nearest:
                    raise ValueError(f"argv holds the unknown placeholder {{{name}}}; did you mean {{{nearest}}}?")
        for folder in self.state:
            if not folder.startswith(("/", "~/")) or "\0" in folder:
                raise ValueError(f"state must hold absolute paths or such that begin with '~/', found {folder!r}")
        if self.prompt == "file" and not self.uses("prompt_file"):
            raise ValueError('prompt = "file" needs {prompt_file} in argv')

    def uses(self, placeholder: str) -> bool:
        """Whether the template names `{placeholder}`."""
        return any(f"{{{placeholder}}}" in word for word in self.argv)

    def filled(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The argv with each placeholder replaced once; braces in a value stay as they are."""
        program, *words = self.argv
        return (program, *(_BRACED.sub(lambda m: values.get(m[1], m[0]), word) for word in words))


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file; `task_show` checks `models` and `fleet`."""

    commands: dict[str, Command] = {}
    models: dict[str, object] = {}
    fleet: dict[str, object] = {}
    confinement: Literal["on", "require"] = "on"

    def command(self, model: str) -> tuple[str, Command] | str:
        """The command that the model token names and its name, or a sentence that says why there is none."""
        names = ", ".join(self.commands) or "none"
        if model != "auto":
            found = self.commands.get(model)
            return (model, found) if found else f"no command named {model!r} is configured (configured: {names})"
        if len(self.commands) == 1:
            return next(iter(self.commands.items()))
        defaults = [item for item in self.commands.items() if item[1].default]
        if len(defaults) == 1:
            return defaults[0]
        return f"'auto' needs one configured command or one with default = true (configured: {names})"


def config_path(environ: Mapping[str, str]) -> Path:
    """Where the user's configuration is. A relative `XDG_CONFIG_HOME` is ignored, as XDG says."""
    base = environ.get("XDG_CONFIG_HOME", "")
    folder = base if os.path.isabs(base) else os.path.join(home_folder(environ), ".config")
    return Path(folder, "unit-workspace", "config.toml")


def home_folder(environ: Mapping[str, str]) -> str:
    """The user's home folder: `HOME` where it is an absolute path, else the account's."""
    home = environ.get("HOME", "")
    if os.path.isabs(home):
        return home
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        # A user id without an account, as containers have them: nothing of such a user's is anywhere.
        return "/nonexistent"


def load_config(path: Path, outside: Path | None = None) -> Config:
    """Read and check the file; a missing one is an empty configuration.

    `outside` is a directory that must not contain it. Raises `ConfigError` naming the key, what was expected
    and the nearest known name.
    """
    data = read_trusted(path, outside)
    if data is None:
        return Config()
    import tomllib

    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    try:
        _refuse_unknown_keys(document)
        config = msgspec.convert(document, Config)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return config


def _refuse_unknown_keys(document: dict[str, object]) -> None:
    _refuse_unknown("the top level", document, Config.__struct_fields__)
    commands = document.get("commands", {})
    if not isinstance(commands, dict):
        return
    for name, command in commands.items():
        if name == "auto" or not model_allowed("command", name):
            raise ValueError(
                f"command name {name!r} must be letters, digits, '.', '_' or '-', begin with a letter or "
                "digit, and not be 'auto'"
            )
        if isinstance(command, dict):
            _refuse_unknown(f"[commands.{name}]", command, Command.__struct_fields__)
    defaults = [name for name, command in commands.items() if isinstance(command, dict) and command.get("default")]
    if len(defaults) > 1:
        raise ValueError(f"only one command may have default = true, found {', '.join(defaults)}")


def _refuse_unknown(place: str, table: dict[str, object], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            nearest = _nearest(key, known)
            hint = f"did you mean {nearest!r}?" if nearest else f"known keys: {', '.join(known)}"
            raise ValueError(f"unknown key {key!r} in {place}; {hint}")


def _nearest(name: str, known: Iterable[str]) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)), None)


def read_trusted(path: Path, outside: Path | None) -> bytes | None:
    try:
        data, status = read_regular(path, MAX_CONFIG_BYTES, follow=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if status.st_uid != os.geteuid():
        raise ConfigError(f"{path}: must be owned by you (uid {os.geteuid()}), found uid {status.st_uid}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(f"{path}: others may write it (mode {mode:04o}); run chmod go-w on it")
    if outside is not None and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(outside)):
        raise ConfigError(f"{path}: lies inside the unit's workspace and is not read; unset XDG_CONFIG_HOME")
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path}: must be at most {MAX_CONFIG_BYTES} bytes")
    return data
