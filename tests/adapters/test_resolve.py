"""One fixed recipient out of an ordered wish list, or native work; told without sending anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.preflight import Report, Restrictions
from adapters.resolve import Candidate, Examined, Host, answer, parse_preference, self_equivalent, walk
from adapters.route_table import ROUTES
from tests.adapters.test_preflight import Machine
from tests.host import Host as Controller

HELD = Restrictions(confinement="landlock", enforced=True, abi=7, git_file="read-only", note=None)


def report(route: str, available: bool) -> Report:
    known = ROUTES[route]
    return Report(
        route=route,
        target=known.target,
        harness=known.harness,
        intermediaries=known.intermediaries,
        model_requested="auto",
        restriction_posture=known.restriction_posture,
        available=available,
        reason=None if available else "not here",
        restrictions=HELD,
    )


def outcomes(text: str, host: Host, *available: str) -> list[tuple[str, str]]:
    looked_at: list[str] = []

    def find_out(candidate: Candidate) -> Report:
        looked_at.append(candidate.route.name)
        return report(candidate.route.name, candidate.route.name in available)

    examined = walk(parse_preference(text), host, find_out)
    assert looked_at == [one.candidate.route.name for one in examined if one.report is not None]
    return [(one.candidate.route.name, one.outcome) for one in examined]


WISHES = json.dumps([{"target": "claude"}, {"target": "codex"}, {"target": "grok"}, {"target": "opencode"}])


def test_the_first_that_qualifies_is_taken_and_no_later_one_is_looked_at() -> None:
    assert outcomes(WISHES, Host("claude"), "grok-cli", "opencode") == [
        ("claude", "self-equivalent"),
        ("codex", "unavailable"),
        ("grok-cli", "selected"),
        ("opencode", "not-examined"),
    ]


def test_grok_alone_means_its_own_program_and_never_another_intermediary() -> None:
    assert [one.route.name for one in parse_preference('[{"target": "grok"}]')] == ["grok-cli"]
    assert [one.route.name for one in parse_preference('[{"route": "grok-cursor"}]')] == ["grok-cursor"]


@pytest.mark.parametrize(
    ("route", "model", "harness", "host_model", "same"),
    [
        ("claude", None, "claude", None, True),
        ("claude", "auto", "claude", "claude-opus-5", True),
        ("claude", "opus", "claude", "claude-opus-5", True),
        ("claude", "claude-opus-5", "claude", "claude-opus-5-20260101", True),
        ("claude", "claude-opus-5", "claude", "opus", True),
        ("claude", "sonnet", "claude", "claude-opus-5", False),
        # A pinned model, and nobody knows which one the host runs.
        ("claude", "sonnet", "claude", None, False),
        ("codex", None, "claude", "claude-opus-5", False),
        ("codex", "gpt-5", "codex", "gpt-5.6-sol", False),
        ("codex", "gpt-5.6-sol", "codex", "gpt-5.6-sol", True),
        ("cursor", None, "cursor-agent", "composer-2.5-fast", True),
        ("composer", None, "cursor-agent", "Composer 2.5 Fast", True),
        ("composer", None, "cursor-agent", "auto", False),
        ("grok-cursor", None, "cursor-agent", "composer-2.5-fast", False),
        ("claude", None, None, None, False),
    ],
)
def test_a_route_that_would_only_call_the_host_itself_is_seen(
    route: str, model: str | None, harness: str | None, host_model: str | None, same: bool
) -> None:
    found = self_equivalent(Candidate(ROUTES[route], model), Host(harness, host_model))
    assert (found is not None) == same


@pytest.mark.parametrize("mode", ["prefer", "require"])
def test_without_a_candidate_the_work_stays_native_and_every_reason_is_told(mode: Any) -> None:
    claude, codex = parse_preference('[{"target": "claude"}, {"target": "codex"}]')
    examined = (
        Examined(claude, "self-equivalent", "it is the host"),
        Examined(codex, "unavailable", "not here", report("codex", False)),
    )
    told = answer(examined, Host("claude", "opus"), mode, "user request", ())
    assert (told["resolved"], told["actual_route"], told["actual_model"]) == ("native", "native", "opus")
    assert (told["requested_route"], told["requested_model"]) == ("claude", "auto")
    assert told["fallback_reason"] == "claude: it is the host; codex: not here"
    assert (told["binding"], told["egress"]) == (None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("{}", "must be a list"),
        ("[]", "at least one candidate"),
        ("[1]", "candidate 1 of --preference must be an object"),
        ('[{"target": "codex"}, {}]', "candidate 2 of --preference names neither target nor route"),
        ('[{"target": "codex", "modle": "x"}]', "did you mean 'model'?"),
        ('[{"target": "claud"}]', "did you mean 'claude'?"),
        ('[{"route": "grok_cli"}]', "did you mean 'grok-cli'?"),
        ('[{"route": "codex", "target": "claude"}]', "route 'codex' serves target 'codex'"),
        ('[{"target": "claude", "effort": "xhigh"}]', "effort 'xhigh' is for route 'codex' only"),
        ('[{"target": "codex", "effort": "most"}]', "effort must be one of"),
        ('[{"target": "codex", "model": 5}]', "model must be a text or null"),
        ('[{"target": "codex", "model": ""}]', "model must be a text or null"),
    ],
)
def test_a_mistake_in_the_list_is_named(tmp_path: Path, text: str, said: str) -> None:
    done = Machine(tmp_path).call("resolve", "--preference", text, "--mode", "prefer", "--source", "s")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize("source", ["", "x" * 257])
def test_a_source_that_init_would_refuse_is_refused_here(tmp_path: Path, source: str) -> None:
    wish = '[{"target": "codex"}]'
    done = Machine(tmp_path).call("resolve", "--preference", wish, "--mode", "prefer", "--source", source)
    assert done.returncode == 2
    assert "--source must be" in done.stderr


def resolve(machine: Machine, wishes: list[dict[str, Any]], *more: str, **environment: str) -> dict[str, Any]:
    words = ("--preference", json.dumps(wishes), "--mode", "prefer", "--source", "user: use codex for this")
    done = machine.call("resolve", *words, *more, before=(), **environment)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert isinstance(told, dict)
    return told


def test_what_resolve_prints_goes_into_init_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "machine"
    folder.mkdir()
    machine = Machine(folder)
    machine.install("codex")
    wishes: list[dict[str, Any]]
    wishes = [
        {"target": "claude", "model": None, "route": "claude"},
        {"target": "codex", "model": "gpt-5.6-sol", "effort": "low"},
    ]
    told = resolve(machine, wishes, "--restriction", "no new dependencies", "--host-harness", "claude-code")
    assert [one["outcome"] for one in told["candidates"]] == ["self-equivalent", "selected"]
    assert told["candidates"][1]["preflight"]["version"] == "codex 1.2.3"
    assert told["host"]["harness"] == "claude"
    home = tmp_path / "host"
    home.mkdir()
    controller = Controller(home)
    controller.make_repo()
    controller.init(binding=told["binding"], egress=told["egress"]).expect("READY")
    manifest = controller.manifest()
    assert manifest["binding"] == {
        "mode": "prefer",
        "target": "codex",
        "model": "gpt-5.6-sol",
        "source": "user: use codex for this",
    }
    # The sanction keeps what was disclosed.
    assert manifest["egress"] == told["egress"]
    assert manifest["egress"]["restrictions"] == ["no new dependencies"]
    prepared = controller.prepare().expect("PREPARED").body
    authorization = json.loads(Path(prepared["authorization_path"]).read_bytes())
    pinned = tuple(authorization[name] for name in ("route", "model_requested", "effort"))
    assert pinned == ("codex", "gpt-5.6-sol", "low")
    # The same again is the same sanction.
    again = resolve(machine, wishes, "--restriction", "no new dependencies", "--host-harness", "claude-code")
    assert (again["binding"], again["egress"]) == (told["binding"], told["egress"])


@pytest.mark.parametrize("route", [name for name in ROUTES if name != "command"])
def test_every_route_can_be_sanctioned_as_it_is_printed(route: str) -> None:
    from controller.sanction import validate

    examined = (Examined(Candidate(ROUTES[route], None), "selected", None, report(route, True)),)
    told = answer(examined, Host(), "require", "user request", ("require:enforced-confinement",))
    binding, egress = told["binding"], told["egress"]
    assert isinstance(binding, dict) and isinstance(egress, dict)
    assert validate(binding, egress).route.name == route
    disclosed = egress["disclosure"]
    assert disclosed["recipient"]["route"] == route
    assert disclosed["recipient"]["provider"]
    assert disclosed["intermediaries"] == list(ROUTES[route].intermediaries)
    assert disclosed["material"]
    assert disclosed["restrictions"] == [{"text": "require:enforced-confinement", "held_by": "landlock"}]
    assert disclosed["confinement"] == {"means": "landlock", "enforced": True, "abi": 7, "note": None}
    assert "no security sandbox" in disclosed["isolation"]


def test_a_pinned_model_never_becomes_another_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.install("codex")
    told = resolve(machine, [{"target": "codex", "model": "opus"}])
    assert told["resolved"] == "native"
    assert "not compatible" in told["fallback_reason"]


def test_a_requirement_that_cannot_be_held_passes_to_the_next(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.install("codex")
    machine.install("claude")
    told = resolve(machine, [{"target": "claude"}, {"target": "codex"}], "--restriction", "require:no-network")
    assert [one["outcome"] for one in told["candidates"]] == ["unavailable", "selected"]
    assert told["egress"]["disclosure"]["restrictions"] == [{"text": "require:no-network", "held_by": "cli-sandbox"}]
