"""Where each agent CLI keeps its own things on this machine, and what its help page must show. Data only.

`~/` is the user's home, `$NAME/` the folder that the variable names or else its default (`BASES`). Facts:
`spec/agents.md`, the vendors' public documentation and issue threads (August to October 2026).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import msgspec


class Installation(msgspec.Struct, frozen=True):
    """One CLI as it is installed.

    `state` are the folders that it must be able to write, `state_files` single files of that kind (only those that
    exist count). `trusted` are entries within `state` that a later session of the user's obeys (settings, hooks,
    plugins, programs): they are kept read-only where the machine can. `credentials` are files of which one exists
    when the user has logged in. `temporary` are variables that name its temporary folder beside `TMPDIR`.
    `listed` are those of our flags that its help page is documented to list: one that is missing there is no longer
    known.
    """

    state: tuple[str, ...] = ()
    state_files: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    temporary: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()


BASES = {
    "CLAUDE_CONFIG_DIR": "~/.claude",
    "CODEX_HOME": "~/.codex",
    "GROK_CONFIG_HOME": "~/.grok",
    "XDG_CACHE_HOME": "~/.cache",
    "XDG_CONFIG_HOME": "~/.config",
    "XDG_DATA_HOME": "~/.local/share",
    "XDG_STATE_HOME": "~/.local/state",
}

INSTALLATIONS: dict[str, Installation] = {
    "codex": Installation(
        credentials=("$CODEX_HOME/auth.json",),
        listed=(
            *("--ignore-user-config", "--ignore-rules", "--ephemeral", "--json", "--skip-git-repo-check"),
            *("-s", "-C", "-o", "-c", "-m"),
        ),
    ),
    "claude": Installation(
        state=("$CLAUDE_CONFIG_DIR",),
        # Written in place at each start (anthropics/claude-code#76069).
        state_files=("~/.claude.json",),
        trusted=tuple(
            f"$CLAUDE_CONFIG_DIR/{name}"
            for name in (
                *("settings.json", "settings.local.json", "CLAUDE.md", "hooks", "commands", "agents", "skills"),
                *("plugins", "rules", "output-styles", "local"),
            )
        ),
        credentials=("$CLAUDE_CONFIG_DIR/.credentials.json",),
        temporary=("CLAUDE_CODE_TMPDIR",),
        # Its help page leaves flags out, so only those that it has always shown count.
        listed=("-p", "--output-format", "--verbose", "--permission-mode", "--model"),
    ),
    "grok": Installation(
        state=("$GROK_CONFIG_HOME",),
        trusted=tuple(
            f"$GROK_CONFIG_HOME/{name}"
            for name in ("config.toml", "AGENTS.md", "hooks", "skills", "plugins", "agents", "bin", "sandbox.toml")
        ),
        credentials=("$GROK_CONFIG_HOME/auth.json",),
        listed=("--prompt-file", "--output-format", "--cwd"),
    ),
    "cursor-agent": Installation(
        credentials=("$XDG_CONFIG_HOME/cursor/auth.json",),
        listed=("-p", "--output-format", "--force", "--model"),
    ),
    "opencode": Installation(
        state=(
            *("$XDG_DATA_HOME/opencode", "$XDG_STATE_HOME/opencode", "$XDG_CACHE_HOME/opencode"),
            "$XDG_CONFIG_HOME/opencode",
        ),
        trusted=tuple(
            f"$XDG_CONFIG_HOME/opencode/{name}"
            for name in (
                *("opencode.json", "opencode.jsonc", "config.json", "AGENTS.md", "plugin", "plugins", "agent"),
                *("agents", "command", "commands", "tool", "tools", "skill", "skills", "mode", "modes"),
            )
        ),
        credentials=("$XDG_DATA_HOME/opencode/auth.json",),
        listed=("--format", "-m"),
    ),
    "agy": Installation(
        state=("~/.gemini",),
        trusted=tuple(
            f"~/.gemini/{name}"
            for name in (
                *("GEMINI.md", "settings.json", "config", "extensions", "skills", "commands", "hooks"),
                *("antigravity-cli/settings.json", "antigravity-cli/bin", "antigravity-cli/plugins"),
            )
        ),
        credentials=("~/.gemini/antigravity-cli/auth.json", "~/.gemini/oauth_creds.json"),
        listed=("--add-dir", "--dangerously-skip-permissions"),
    ),
    "devin": Installation(
        state=("$XDG_DATA_HOME/devin", "$XDG_CACHE_HOME/devin", "$XDG_CONFIG_HOME/devin"),
        trusted=tuple(
            f"$XDG_CONFIG_HOME/devin/{name}" for name in ("config.json", "AGENTS.md", "skills", "hooks", "agents")
        ),
        credentials=("$XDG_DATA_HOME/devin/credentials.toml",),
        listed=("--prompt-file", "--permission-mode"),
    ),
}
"""By harness (`Route.harness`). Nothing is known of a `command`: the user's configuration says what it needs."""

NOTHING_KNOWN = Installation()


def installation(harness: str) -> Installation:
    """What is known of the CLI behind `harness`."""
    return INSTALLATIONS.get(harness, NOTHING_KNOWN)


def located(templates: Iterable[str], environ: Mapping[str, str], home: str) -> tuple[str, ...]:
    """The absolute paths that `templates` mean where `environ` is the CLI's own environment.

    A variable with a relative value counts as not set.
    """
    return tuple(_located(template, environ, home) for template in templates)


def _located(template: str, environ: Mapping[str, str], home: str) -> str:
    base, _, rest = template.partition("/")
    if base.startswith("$"):
        value = environ.get(base[1:], "")
        base = value if os.path.isabs(value) else BASES[base[1:]]
        template = f"{base}/{rest}" if rest else base
    return os.path.join(home, template[2:]) if template.startswith("~/") else template
