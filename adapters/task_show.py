"""`cross-model-work task FILE [--repo DIR] [--json]`: the worker, scope and limits of a task file, and why.

Reads the task file, GOAL.md of its repository and the user's configuration; starts nothing and writes nothing.
With `--json` a refusal is one JSON object on stdout, too: `{"refused": {message, expected, found, remedy, line}}`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adapters.config import config_path, read_trusted
from adapters.errors import EXIT_DONE, EXIT_REFUSED, AdapterError, ConfigError, UsageError
from adapters.files import read_regular
from adapters.fleet import Decision, FleetConfig, decide, parse_fleet_config
from adapters.fleet_table import FleetTable, parse_fleet
from adapters.refusal import Refusal, unknown
from adapters.resolution import NO_MODELS, ModelMap, parse_models
from adapters.route_table import ROUTES
from adapters.task_file import MAX_TASK_BYTES, TaskFile, parse_task
from runner.errors import printable

GOAL = "GOAL.md"
MAX_GOAL_BYTES = 1024 * 1024

_CONFIG_KEYS = ("commands", "models", "fleet")
_USAGE = "usage: cross-model-work task <file> [--repo <directory>] [--json]"


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Do what `arguments` (after the word `task`) say; the exit code is 0, or 2 for a refusal."""
    file, repo, as_json = _parse(arguments)
    try:
        document = describe(file, repo, environ)
    except AdapterError as error:
        if not as_json:
            raise
        refusal = error if isinstance(error, Refusal) else Refusal(str(error))
        _write(json.dumps({"refused": refusal.document()}, sort_keys=True))
        return EXIT_REFUSED
    _write(json.dumps(document, sort_keys=True) if as_json else _for_people(document))
    return EXIT_DONE


def describe(file: str, repo: str | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """Everything that `task show` says, as JSON values; `AdapterError` when the task may not be dispatched as it is."""
    path = os.path.abspath(file)
    data = _read(path, MAX_TASK_BYTES, "task file")
    task = parse_task(data, os.path.basename(path))
    top = _repository(path, repo)
    table = _fleet(top)
    config, models = _configuration(top, environ)
    decision = decide(task, table, config, models)
    return {
        "schema_version": 1,
        "task": {
            "path": path,
            "path_in_repository": _inside(path, top),
            "sha256": hashlib.sha256(data).hexdigest(),
            "bytes": len(data),
            "id": task.id,
            "title": task.title,
            "feature": task.feature,
            "attempt": task.attempt,
            "escalated": task.escalated,
            "depends_on": list(task.depends_on),
        },
        "repository": top,
        "worker": _worker(decision),
        "why": {
            "worker": decision.routing,
            "answers": task.answers,
            "fleet_in_force": table is not None,
            "steps": [
                {"source": step.source, "outcome": step.outcome, "place": step.place, "says": step.says}
                for step in decision.steps
            ],
        },
        "scope": {
            "write_allowed": list(task.write_allowed),
            "read_allowed": list(task.read_allowed),
            "read_only": task.read_only,
        },
        "limits": {"timeout_sec": task.timeout_sec, "network": task.network},
        **_sanction(task, decision),
        "warnings": [*models.notes, *decision.notes],
    }


def _worker(decision: Decision) -> dict[str, Any]:
    route = ROUTES[decision.route]
    return {
        "route": route.name,
        "target": route.target,
        "harness": route.harness,
        "intermediaries": list(route.intermediaries),
        "restriction_posture": route.restriction_posture,
        "model": decision.resolution.token,
        "model_name": decision.resolution.model,
        "effort": decision.effort,
        "tier": decision.resolution.tier,
        "stance": decision.resolution.stance,
        "source": decision.source,
        "model_from": decision.resolution.place,
    }


def _sanction(task: TaskFile, decision: Decision) -> dict[str, Any]:
    """The objects that `init` takes; effort and tier are kept beside the route, so that the journal has them."""
    route = ROUTES[decision.route]
    return {
        "binding": {
            "mode": "prefer",
            "target": route.target,
            "model": decision.resolution.token,
            "source": f"task {task.id}: {decision.source}",
        },
        "egress": {
            "route": route.name,
            "intermediaries": list(route.intermediaries),
            "restrictions": [],
            "effort": decision.effort,
            **({"tier": decision.resolution.tier} if decision.resolution.tier else {}),
        },
    }


def _parse(arguments: Sequence[str]) -> tuple[str, str | None, bool]:
    files: list[str] = []
    repo: str | None = None
    as_json = False
    rest = iter(arguments)
    for word in rest:
        if word == "--json":
            as_json = True
        elif word == "--repo":
            repo = next(rest, None)
            if not repo:
                raise UsageError(_USAGE)
        elif word == "--":
            files += rest
        elif word.startswith("-"):
            raise UsageError(f"unknown option {word!r}; {_USAGE}")
        else:
            files.append(word)
    if len(files) != 1 or not files[0]:
        raise UsageError(_USAGE)
    return files[0], repo, as_json


def _read(path: str, limit: int, what: str) -> bytes:
    try:
        data, _ = read_regular(path, limit, follow=False)
    except OSError as error:
        link = error.errno == errno.ELOOP and os.path.islink(path)
        raise Refusal(
            f"the {what} cannot be read: {path}",
            expected="a regular file, no link",
            found="a symbolic link" if link else (error.strerror or "an error"),
            remedy="name the file itself" if link else "check the path",
        ) from None
    except ValueError:
        raise Refusal(f"the {what}'s path holds a NUL character", expected="a path", remedy="check the path") from None
    if len(data) > limit:
        raise Refusal(
            f"the {what} is too large: {path}",
            expected=f"at most {limit} bytes",
            found=f"more than {limit} bytes",
            remedy="split it",
        )
    return data


def _repository(path: str, repo: str | None) -> str:
    """The top level of the work tree that the task is for, symbolic links resolved."""
    if repo is not None and not os.path.isdir(repo):
        raise Refusal("--repo is no directory", expected="a Git work tree", found=repo, remedy="check the path")
    for start in (repo,) if repo is not None else (os.path.dirname(path), os.getcwd()):
        folder = os.path.realpath(start)
        while not os.path.lexists(os.path.join(folder, ".git")):
            parent = os.path.dirname(folder)
            if parent == folder:
                break
            folder = parent
        else:
            return folder
    raise Refusal(
        "no Git work tree holds the task file",
        expected="a task file inside the repository, or --repo",
        found=repo or os.path.dirname(path),
        remedy="pass --repo with the checkout that the work shall land in",
    )


def _inside(path: str, top: str) -> str | None:
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    relative = os.path.relpath(real, top)
    return None if relative.startswith("../") or relative.split("/")[0] == ".git" else relative


def _fleet(top: str) -> FleetTable | None:
    path = os.path.join(top, GOAL)
    if not os.path.lexists(path):
        return None
    try:
        text = _read(path, MAX_GOAL_BYTES, GOAL).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(
            f"{path} is not UTF-8",
            expected="UTF-8 text",
            found=f"byte 0x{error.object[error.start]:02x} at {error.start}",
            remedy="convert the file",
        ) from None
    return parse_fleet(text, GOAL)


def _configuration(top: str, environ: Mapping[str, str]) -> tuple[FleetConfig, ModelMap]:
    path = config_path(environ)
    # The default place is the user's own, also when the home directory itself is a repository.
    chosen = os.path.isabs(environ.get("XDG_CONFIG_HOME", ""))
    document = _user_document(path, Path(top) if chosen else None)
    models = parse_models(document["models"], str(path)) if "models" in document else NO_MODELS
    return parse_fleet_config(document.get("fleet", {}), str(path)), models


def _user_document(path: Path, outside: Path | None) -> dict[str, Any]:
    """The user's configuration, trusted as `adapters.config` trusts it; empty when there is none."""
    data = read_trusted(path, outside)
    if data is None:
        return {}
    import tomllib

    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    for key in document:
        if key not in _CONFIG_KEYS:
            raise unknown(f"key in {path}:", key, _CONFIG_KEYS)
    return document


def _for_people(document: dict[str, Any]) -> str:
    task, worker, why, scope = (document[key] for key in ("task", "worker", "why", "scope"))
    allowed = ", ".join(scope["write_allowed"]) or "nothing"
    lines = [
        f"task      {task['id']}, feature {task['feature']}, attempt {task['attempt']}",
        f"worker    {worker['route']}, model {worker['model']}, effort {worker['effort']} ({worker['source']})",
        f"because   {why['worker']}",
        *(f"          {step['source']}: {step['outcome']}, {step['says']}" for step in why["steps"]),
        f"scope     {'read only' if scope['read_only'] else 'may change ' + allowed}",
        f"limits    {document['limits']['timeout_sec']} s",
        *(f"note      {warning}" for warning in document["warnings"]),
    ]
    return "\n".join(printable(line) for line in lines)


def _write(text: str) -> None:
    sys.stdout.buffer.write((text + "\n").encode(sys.stdout.encoding or "ascii", "backslashreplace"))
    sys.stdout.buffer.flush()
