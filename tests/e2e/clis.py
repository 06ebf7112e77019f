"""The agent CLIs that the end-to-end tests drive: which release, where it lies, how its user points it at a model.

Nothing of the product is changed for this: the adapter starts the program that it finds on PATH under its fixed name,
and a wrapper of the user's own on PATH, or the user's own configuration, says where the model is.
Sources: `spec/agents.md` and the vendors' public documentation of these settings.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

FOLDER = "unit-workspace-e2e"
MODEL = "scripted/model-1"
"""How opencode calls the one model of the test's provider."""


@dataclass(frozen=True)
class Cli:
    """One CLI from npm.

    `after` is the package's own script that has to be run once (npm is kept from running any). `model` is asked for
    in `init`, None for the CLI's own choice. `wrapper` builds the shell script that stands on PATH under the route's
    name, from the real program's path and the model's address; `configure` writes the user's configuration at home.
    `session` is the pattern of its session ids, `served` that of the model in the receipt and the receipt's word for
    it, `confined` what may hold its worker.
    """

    route: str
    package: str
    version: str
    after: str | None
    model: str | None
    wrapper: Callable[[str, str], str]
    session: str
    served: tuple[str, str]
    confined: tuple[str, ...]
    configure: Callable[[Path, str], None] = lambda home, url: None

    @property
    def spec(self) -> str:
        """What npm is asked for."""
        return f"{self.package}@{self.version}"

    def folder(self, cache: Path) -> Path:
        """Where this release is installed."""
        return cache / f"{self.route}-{self.version}"

    def program(self, cache: Path) -> Path:
        """The program that npm links."""
        return self.folder(cache) / "node_modules" / ".bin" / self.route


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the CLIs are installed and where their private homes are made; nothing is created here."""
    base = environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else Path(environ.get("HOME", "/"), ".cache"), FOLDER)


def unsuitable(cache: Path) -> str | None:
    """Why nothing can be installed in `cache`, or None.

    codex makes no sandbox helper when its home lies in a temporary folder, and then runs no command (agents.md).
    """
    real = os.path.realpath(cache)
    for folder in {"/tmp", os.path.realpath(os.environ.get("TMPDIR") or "/tmp")}:
        if f"{real}/".startswith(f"{folder.rstrip('/')}/"):
            return f"{cache} lies in the temporary folder {folder}; set XDG_CACHE_HOME to a folder that does not"
    return None


def missing(cli: Cli) -> str | None:
    """Why the tests of `cli` cannot run here, or None."""
    cache = cache_folder()
    reason = unsuitable(cache)
    if reason is not None:
        return f"{cli.spec}: {reason}"
    if shutil.which("node") is None:
        return f"{cli.spec}: no node on PATH"
    if not cli.program(cache).exists():
        return f"{cli.spec} is not installed in {cache}; scripts/e2e does that"
    return None


def _codex(program: str, url: str) -> str:
    # One retry each, so that the events hold a reconnect, too, and no test waits for five.
    provider = (
        f'{{name="scripted",base_url="{url}/v1",wire_api="responses",env_key="SCRIPTED_KEY",'
        "request_max_retries=1,stream_max_retries=1}"
    )
    settings = shlex.join(["-c", "model_provider=scripted", "-c", f"model_providers.scripted={provider}"])
    return (
        "#!/bin/sh\nSCRIPTED_KEY=none\nexport SCRIPTED_KEY\n"
        f'[ "$1" = exec ] || exec {shlex.quote(program)} "$@"\nshift\n'
        f'exec {shlex.quote(program)} exec {settings} "$@"\n'
    )


def _claude(program: str, url: str, credential: str = "ANTHROPIC_API_KEY") -> str:
    settings = {
        "ANTHROPIC_BASE_URL": url,
        credential: "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
    }
    return _with_environment(program, settings)


def _opencode(program: str, url: str) -> str:
    # Offline: it would ask for a list of models, and npm for its own plugins.
    return _with_environment(program, {"OPENCODE_DISABLE_MODELS_FETCH": "1", "npm_config_offline": "true"})


def _configure_opencode(home: Path, url: str) -> None:
    name, _, model = MODEL.partition("/")
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Scripted",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {model: {"name": "Scripted", "limit": {"context": 200_000, "output": 8_000}}},
    }
    path = home / ".config" / "opencode" / "opencode.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"provider": {name: provider}}))


def _with_environment(program: str, settings: Mapping[str, str]) -> str:
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings.items())
    return f'#!/bin/sh\n{exports}exec {shlex.quote(program)} "$@"\n'


_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NOT_TOLD = ("unverified", "unverified")
_OURS = ("landlock", "bubblewrap")

CODEX = Cli(
    *("codex", "@openai/codex", "0.171.0", None, None, _codex),
    session=_UUID,
    served=_NOT_TOLD,
    confined=("cli-sandbox",),
)
CLAUDE = Cli(
    *("claude", "@anthropic-ai/claude-code", "2.1.197", "install.cjs", "sonnet", _claude),
    session=_UUID,
    served=(r"claude-sonnet-[\w.-]+", "verified"),
    confined=_OURS,
)
OPENCODE = Cli(
    *("opencode", "opencode-ai", "1.18.33", "postinstall.mjs", MODEL, _opencode),
    session=r"ses_[A-Za-z0-9]+",
    served=_NOT_TOLD,
    confined=_OURS,
    configure=_configure_opencode,
)


def subscribed_claude() -> Cli:
    """claude as someone has it who pays for a plan and not by use: limits are told in another way then."""
    return replace(CLAUDE, wrapper=partial(_claude, credential="CLAUDE_CODE_OAUTH_TOKEN"))


CLIS = {cli.route: cli for cli in (CODEX, CLAUDE, OPENCODE)}
