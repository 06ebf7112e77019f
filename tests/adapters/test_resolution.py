"""A tier means one model, whoever asks; a configuration with a mistake in it is refused, never half read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.refusal import Refusal
from adapters.resolution import (
    BACKENDS,
    EFFORTS,
    LAUNCHER_BACKENDS,
    STANCES,
    TIERS,
    parse_models,
    resolve,
)
from adapters.route_table import ROUTES, model_allowed

VECTORS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("test_resolution_vectors.json").read_text())


def outcome(row: dict[str, Any]) -> object:
    try:
        found = resolve(row["backend"], tier=row["tier"], effort=row["effort"], stance=row["stance"])
    except Refusal:
        return "ValueError"
    return {"backend": found.backend, "tier": found.tier, "model": found.model, "effort": found.effort}


def test_every_row_of_the_launchers_table_resolves_as_it_did() -> None:
    assert len(VECTORS) == 840
    wrong = [(row, found) for row in VECTORS if (found := outcome(row)) != row["out"]]
    assert wrong == []


@pytest.mark.parametrize(
    ("backend", "stance", "model"),
    [
        ("claude", "balanced", "fable"),
        ("claude", "conservative", "fable"),
        ("claude", "cost-aware", "opus"),
        ("codex", "balanced", "gpt-5.6-sol"),
        ("opencode", "cost-aware", "anthropic/claude-opus-4-6"),
    ],
)
def test_frontier_is_above_deep_where_there_is_a_model_above_it(backend: str, stance: str, model: str) -> None:
    found = resolve(backend, tier="frontier", stance=stance)
    assert (found.model, found.effort) == (model, "high")


def test_frontier_does_not_fall_below_a_deep_model_that_the_user_configured() -> None:
    models = parse_models({"codex": {"deep": "gpt-6-sol"}})
    assert resolve("codex", tier="frontier", models=models).model == "gpt-6-sol"
    assert resolve("claude", tier="frontier", models=parse_models({"claude": {"deep": "opus"}})).model == "fable"


def test_an_explicit_model_wins_over_the_configuration_and_that_over_the_table() -> None:
    models = parse_models({"codex": {"light": "gpt-6-mini"}})
    explicit = resolve("codex", tier="light", explicit="gpt-9", models=models)
    assert (explicit.model, explicit.origin) == ("gpt-9", "explicit")
    configured = resolve("codex", tier="light", models=models)
    assert (configured.model, configured.origin, configured.place) == ("gpt-6-mini", "config", "models.codex.light")
    assert resolve("codex", tier="deep", models=models).origin == "built-in"


def test_a_stance_of_its_own_is_used_for_that_stance_only() -> None:
    models = parse_models({"cost-aware": {"codex": {"deep": "gpt-6-mini"}}})
    assert resolve("codex", tier="deep", stance="cost-aware", models=models).model == "gpt-6-mini"
    assert resolve("codex", tier="deep", models=models).model == "gpt-5.6-sol"


def test_a_flat_key_among_stances_is_refused_instead_of_silencing_every_stance() -> None:
    mixed = {"cost-aware": {"codex": {"deep": "gpt-6-mini"}}, "antigravity": {"light": "Gemini 3.5 Flash (Low)"}}
    with pytest.raises(Refusal) as refusal:
        parse_models(mixed, "config.toml")
    assert "cost-aware" in str(refusal.value)
    assert "[models.cost-aware.antigravity]" in refusal.value.remedy


@pytest.mark.parametrize(
    ("document", "nearest"),
    [
        ({"codx": {"deep": "gpt-6"}}, "codex"),
        ({"balancd": {"codex": {"deep": "gpt-6"}}}, "balanced"),
        ({"balanced": {"codx": {"deep": "gpt-6"}}}, "codex"),
        ({"codex": {"depe": "gpt-6"}}, "deep"),
        ({"balanced": {"codex": {"lite": "gpt-6"}}}, "light"),
    ],
)
def test_a_misspelt_key_of_the_models_map_is_named_with_the_nearest(document: object, nearest: str) -> None:
    with pytest.raises(Refusal) as refusal:
        parse_models(document)
    assert nearest in refusal.value.remedy


@pytest.mark.parametrize("document", [[], "x", {"codex": "gpt-6"}, {"balanced": ["codex"]}, {"balanced": {"codex": 1}}])
def test_a_models_map_of_another_shape_is_refused(document: object) -> None:
    with pytest.raises(Refusal):
        parse_models(document)


def test_a_blank_cell_counts_as_not_there_and_is_told() -> None:
    models = parse_models({"codex": {"deep": "  ", "light": 5, "standard": "gpt-6"}})
    assert resolve("codex", tier="deep", models=models).model == "gpt-5.6-sol"
    assert len(models.notes) == 2
    assert "models.codex.deep" in models.notes[0]


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "codex"])
def test_xhigh_elsewhere_than_codex_names_the_rule_and_suggests_high(backend: str) -> None:
    with pytest.raises(Refusal) as refusal:
        resolve(backend, tier="deep", effort="xhigh")
    assert "only if the backend is codex" in str(refusal.value)
    assert "high" in refusal.value.remedy
    assert resolve("codex", tier="deep", effort="xhigh").effort == "xhigh"


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        ({"backend": "CODEX", "tier": "deep"}, "codex"),
        ({"backend": "antigravty", "tier": "deep"}, "antigravity"),
        ({"backend": "codex", "tier": "DEEP"}, "deep"),
        ({"backend": "codex", "tier": "deep", "effort": "hihg"}, "high"),
        ({"backend": "codex", "tier": "deep", "stance": "cost_aware"}, "cost-aware"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest_known_one(arguments: dict[str, str], nearest: str) -> None:
    with pytest.raises(Refusal) as refusal:
        resolve(**arguments)  # type: ignore[arg-type]
    assert f"did you mean {nearest!r}?" in refusal.value.remedy


@pytest.mark.parametrize("model", ["gpt-5", "/gpt-5", "openai/", ""])
def test_an_opencode_model_without_a_provider_is_refused(model: str) -> None:
    with pytest.raises(Refusal) as refusal:
        resolve("opencode", explicit=model)
    assert "provider/model" in refusal.value.expected


def test_a_model_of_another_family_is_refused_with_who_serves_it() -> None:
    with pytest.raises(Refusal) as refusal:
        resolve("cursor", explicit="composer-2.5-fast")
    assert "composer" in refusal.value.remedy
    with pytest.raises(Refusal):
        resolve("codex", tier="deep", models=parse_models({"codex": {"deep": "opus"}}))


def test_a_name_with_neither_model_nor_tier_is_refused() -> None:
    with pytest.raises(Refusal) as refusal:
        resolve("codex")
    assert "default is never used" in refusal.value.remedy


def test_display_names_become_what_the_command_line_takes() -> None:
    found = resolve("antigravity", tier="deep")
    assert (found.model, found.token) == ("Gemini 3.1 Pro (High)", "gemini-3.1-pro-high")


@pytest.mark.parametrize("route", [name for name in BACKENDS if name not in LAUNCHER_BACKENDS])
def test_a_route_outside_the_table_serves_its_own_default_at_every_tier(route: str) -> None:
    assert {resolve(route, tier=tier).token for tier in TIERS} == {ROUTES[route].default_model}


@given(
    backend=st.sampled_from(BACKENDS),
    tier=st.sampled_from(TIERS),
    effort=st.sampled_from((None, *EFFORTS)),
    stance=st.sampled_from((None, *STANCES)),
)
def test_whatever_resolves_may_be_sanctioned_by_its_route(
    backend: str, tier: str, effort: str | None, stance: str | None
) -> None:
    try:
        found = resolve(backend, tier=tier, effort=effort, stance=stance)
    except Refusal:
        assert effort == "xhigh" and backend != "codex"
        return
    assert model_allowed(backend, found.token)
    assert found.effort in EFFORTS
