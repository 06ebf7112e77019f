"""A receipt says that a model was served only when the CLI said so."""

from __future__ import annotations

import pytest

from adapters.models import announced_model, displayable, receipt_status
from adapters.route_table import ROUTES


@pytest.mark.parametrize(
    ("route", "requested", "served", "label", "expected"),
    [
        ("claude", "opus", "unverified", None, "unverified"),
        ("claude", "auto", "claude-opus-5", None, "verified"),
        ("claude", "opus", "claude-opus-5-20260101", None, "verified"),
        ("claude", "opus", "claude-sonnet-5", None, "mismatch"),
        ("codex", "gpt-5.6-sol", "gpt-5.6-sol-2026-02-01", None, "verified"),
        ("codex", "gpt-5.6-sol", "GPT 5.6 Sol", None, "verified"),
        ("codex", "gpt-5.6-sol", "gpt-5.6-luna", None, "mismatch"),
        ("composer", "composer-2.5-fast", "Composer 2.5 Fast", None, "verified"),
        ("composer", "composer-2.5-fast", "Composer 2.5", None, "mismatch"),
        ("cursor", "sonnet-4.5-thinking", "Claude 4.5 Sonnet Thinking", "Sonnet 4.5 1M Thinking", "verified"),
        ("grok-cursor", "cursor-grok-4.6-high", "Grok 4.6 High 300K", None, "verified"),
    ],
)
def test_receipt(route: str, requested: str, served: str, label: str | None, expected: str) -> None:
    assert receipt_status(ROUTES[route], requested, served, label) == expected


def test_only_opening_events_announce_a_model() -> None:
    assert announced_model({"type": "system", "subtype": "init", "model": "m-1"}) == "m-1"
    assert announced_model({"type": "init", "model": "m-1"}) == "m-1"
    assert announced_model({"type": "assistant", "model": "m-1"}) is None
    assert announced_model({"type": "init"}) is None
    assert announced_model({"type": "init", "model": 5}) is None


def test_a_model_name_cannot_draw_on_the_terminal_or_be_endless() -> None:
    assert displayable("\x1b[31mgpt-5\x1b[0m\x07\n") == "gpt-5"
    assert displayable("x" * 129) == "unverified"
    assert displayable("\x1b[0m") == "unverified"
