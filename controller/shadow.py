"""A private Git admin directory for reading a worker's tree: nothing that the worker could write configures git.

`prepare` records the user's conversion settings; `terminalize` runs git with them and with the repository's object
store only: own index, own `info/`, no refs, no hooks, no `.git` file of the workspace (launcher.md section 15 W3-W6,
W10, W11).
"""

from __future__ import annotations

import os
from pathlib import Path

from controller import run_root
from controller.git import Git

# What changes bytes between working tree and object store, or which names are ignored or trusted.
_KEPT = frozenset(
    {
        "core.autocrlf",
        "core.eol",
        "core.filemode",
        "core.symlinks",
        "core.ignorecase",
        "core.precomposeunicode",
        "core.checkroundtripencoding",
        "core.attributesfile",
        "core.excludesfile",
        "core.bigfilethreshold",
        "core.repositoryformatversion",
        "extensions.objectformat",
        "extensions.partialclone",
    }
)


def record_config(git: Git, common_dir: str, directory: Path) -> bytes:
    """Keep today's conversion settings and `info/` in the unit's directory; the settings' bytes. One git process."""
    out = git.run("config", "--list", "-z")
    kept = []
    for item in out.split(b"\0")[:-1]:
        key = item.split(b"\n", 1)[0].decode("utf-8", "surrogateescape")
        if key in _KEPT or key.startswith("filter."):
            kept.append(item)
    data = b"".join(item + b"\0" for item in kept)
    run_root.write(directory / "git-config", data)
    for name in ("attributes", "exclude"):
        path = Path(common_dir) / "info" / name
        run_root.write(directory / f"git-{name}", path.read_bytes() if path.is_file() else b"")
    return data


def settings(data: bytes) -> dict[str, str]:
    """Key to value of recorded settings; the last one wins, as in git. Pure."""
    found = {}
    for item in data.split(b"\0")[:-1]:
        key, equals, value = item.partition(b"\n")
        found[os.fsdecode(key)] = os.fsdecode(value) if equals else "true"
    return found


def _config_text(values: dict[str, str]) -> str:
    lines = ["[core]", "\trepositoryformatversion = 0" if "extensions.objectformat" not in values else ""]
    for key, value in values.items():
        section, _, rest = key.partition(".")
        sub, _, name = rest.rpartition(".")
        quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
        header = f'[{section} "{_escape(sub)}"]' if sub else f"[{section}]"
        lines += [header, f'\t{name} = "{quoted}"']
    return "\n".join(lines) + "\n\tbare = false\n" if not values else "\n".join(lines) + "\n[core]\n\tbare = false\n"


def _escape(sub: str) -> str:
    return sub.replace("\\", "\\\\").replace('"', '\\"')


class Shadow:
    """The private admin directory of one unit, made anew for each use."""

    def __init__(self, git: Git, common_dir: str, directory: Path, workspace: Path) -> None:
        self.path = directory / "shadow.git"
        self.workspace = workspace
        self.values = settings(run_root.read(directory / "git-config", None))
        run_root.remove_tree(self.path)
        for folder in (
            self.path,
            self.path / "refs",
            self.path / "objects",
            self.path / "info",
            self.path / "empty",
        ):
            run_root.make_dir(folder)
        run_root.write(self.path / "HEAD", b"ref: refs/heads/none\n")
        run_root.write(self.path / "config", os.fsencode(_config_text(self.values)))
        for name in ("attributes", "exclude"):
            run_root.write(self.path / "info" / name, run_root.read(directory / f"git-{name}", None))
        env = {
            "GIT_DIR": str(self.path),
            "GIT_INDEX_FILE": str(self.path / "index"),
            "GIT_OBJECT_DIRECTORY": os.path.join(common_dir, "objects"),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        # Conversions look up attributes in an empty folder first, so that the base's in the index decide.
        self.git = git.at(self.path / "empty", env={**env, "GIT_WORK_TREE": str(self.path / "empty")})
        self.in_workspace = git.at(workspace, env={**env, "GIT_WORK_TREE": str(workspace)})

    def flag(self, key: str, default: bool) -> bool:
        """A boolean setting."""
        value = self.values.get(key)
        return default if value is None else value.lower() in ("true", "yes", "on", "1", "")

    def remove(self) -> None:
        """Remove the directory."""
        run_root.remove_tree(self.path)
