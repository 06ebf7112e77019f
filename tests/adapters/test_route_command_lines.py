"""The command lines that hosts know (protocol section 13), and those of the routes that came later."""

from __future__ import annotations

import re

import pytest

from adapters.emit import emit_adapter
from adapters.errors import UsageError
from adapters.routes import Context, load
from tests.adapters.fakes.program import FLAGS
from tests.adapters.test_route_failures import ALL

SECTION_13 = {
    "claude": (
        "claude -p --safe-mode --no-session-persistence --permission-mode bypassPermissions "
        "--tools Read,Write,Edit,Bash --allowed-tools Bash(*) --effort high --output-format stream-json --verbose "
    ),
    "grok-cli": (
        "grok --prompt-file <prompt-file> --cwd <workspace> --effort high --permission-mode acceptEdits "
        "--tools Read,Write,Edit --disable-web-search --no-memory --no-subagents --no-plan --max-turns 50 "
        "--output-format streaming-json --verbatim "
    ),
    "cursor": (
        "cursor-agent -p --output-format stream-json --stream-partial-output --force --sandbox enabled --trust "
        "--workspace <workspace> "
    ),
}
SECTION_13["composer"] = SECTION_13["cursor"] + "--model composer-2.5-fast "
SECTION_13["grok-cursor"] = SECTION_13["cursor"] + "--model cursor-grok-4.6-high "
LATER = {
    "opencode": "opencode run --dir <workspace> --format json --auto --variant high --title unit ",
    "antigravity": (
        "agy --add-dir <workspace> --print-timeout 0 --dangerously-skip-permissions --input-format stream-json "
        "--output-format stream-json --disable-slash-commands "
    ),
    "devin": (
        "devin -p --prompt-file <prompt-file> --permission-mode dangerous --respect-workspace-trust false "
        "--export <raw-result> "
    ),
}
EXTRA = {"grok-cli": "--no-auto-update --sandbox workspace "}


def override(model: str, target: str) -> dict[str, str]:
    return {"CE_WORK_MODEL_OVERRIDE": model, "CE_WORK_MODEL_OVERRIDE_TARGET": target}


@pytest.mark.parametrize("route", ALL)
def test_the_command_line_is_the_documented_one(route: str) -> None:
    assert emit_adapter(route, {}) == {**SECTION_13, **LATER}[route] + EXTRA.get(route, "")


@pytest.mark.parametrize(
    ("route", "target", "model"),
    [
        ("claude", "claude", "opus"),
        ("grok-cli", "grok", "grok-4.6"),
        ("cursor", "cursor", "gpt-5.6-sol-medium"),
        ("composer", "composer", "composer-next-fast"),
        ("grok-cursor", "grok", "cursor-grok-4.7-high"),
    ],
)
def test_a_model_override_is_shown(route: str, target: str, model: str) -> None:
    assert emit_adapter(route, override(model, target)).endswith(f" --model {model} ")


@pytest.mark.parametrize(
    ("route", "target", "model"),
    [("cursor", "cursor", "cursor-grok-4.6-high"), ("composer", "composer", "gpt-5.6-sol"), ("claude", "claude", "")],
)
def test_a_model_override_of_another_family_is_refused(route: str, target: str, model: str) -> None:
    with pytest.raises(UsageError, match="not compatible"):
        emit_adapter(route, override(model, target))


@pytest.mark.parametrize("route", ALL)
def test_only_documented_flags_are_passed_and_can_be_asked_for(route: str) -> None:
    adapter = load(route, Context("auto", {}))
    flags = re.findall(r"(?<= )--?[a-z][\w-]*", emit_adapter(route, {}))
    assert flags
    assert set(flags) <= set(FLAGS[ALL[route]])
    assert adapter.version == ("--version",)
    assert adapter.help is not None and adapter.help[-1] == "--help"
