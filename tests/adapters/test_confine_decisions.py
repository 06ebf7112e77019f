"""What a machine and a configuration come to, and what makes a route unavailable."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from adapters.confine import (
    HOME,
    Assessed,
    Confinement,
    Demand,
    Fence,
    Ground,
    Mode,
    Needs,
    Posture,
    check,
    decide,
    demanded,
    fence_of,
    holder,
)
from adapters.errors import Unavailable
from adapters.installation import INSTALLATIONS, located
from adapters.route_table import ROUTES

CLAUDE = ROUTES["claude"]
NOTHING = Posture("cooperative", False, note="nothing here")


@pytest.mark.parametrize(
    ("own", "mode", "ground", "kind", "enforced"),
    [
        ("cli-sandbox", "on", Ground(0), "cli-sandbox", True),
        ("cooperative", "on", Ground(7), "landlock", True),
        ("cooperative", "require", Ground(3), "landlock", True),
        ("cooperative", "on", Ground(0, "/usr/bin/bwrap"), "bubblewrap", True),
        # Landlock before ABI 3 lets a worker empty the user's files.
        ("cooperative", "on", Ground(2, "/usr/bin/bwrap"), "bubblewrap", True),
        ("cooperative", "on", Ground(2), "landlock", False),
        ("cooperative", "on", Ground(0), "cooperative", False),
        ("cooperative", "off", Ground(7), "cooperative", False),
    ],
)
def test_the_best_means_is_taken(own: str, mode: Mode, ground: Ground, kind: str, enforced: bool) -> None:
    posture = decide(own, mode, ground)
    assert (posture.kind, posture.enforced) == (kind, enforced)
    assert enforced or posture.note


@pytest.mark.parametrize(
    ("demand", "said"),
    [
        (demanded(True, "on", ()), "CE_WORK_REQUIRE_ENFORCED_CONFINEMENT=1"),
        (demanded(False, "require", ()), 'confinement = "require"'),
        (demanded(False, "on", ("require:enforced-confinement",)), "require:enforced-confinement"),
    ],
)
def test_a_demand_that_nothing_here_can_meet_makes_the_route_unavailable(demand: Demand, said: str) -> None:
    with pytest.raises(Unavailable, match="cooperative") as refused:
        check(CLAUDE, NOTHING, demand)
    assert said in str(refused.value)
    assert "nothing here" in str(refused.value)
    check(CLAUDE, Posture("landlock", True, 7), demand)


def test_a_requirement_that_nobody_knows_is_not_taken_for_met() -> None:
    with pytest.raises(Unavailable, match="unknown and cannot be enforced"):
        check(CLAUDE, Posture("landlock", True, 7), demanded(False, "on", ("require:no-cookies",)))
    with pytest.raises(Unavailable, match="cannot be enforced on route 'claude'"):
        check(CLAUDE, Posture("landlock", True, 7), demanded(False, "on", ("require:no-network",)))
    check(ROUTES["codex"], Posture("cli-sandbox", True), demanded(False, "on", ("require:no-network",)))


def test_a_restriction_in_free_words_is_cooperative_and_refuses_nothing() -> None:
    words = ("no network", "only touch src")
    check(CLAUDE, NOTHING, demanded(False, "on", words))
    assert holder("no network", Posture("landlock", True, 7)) == "cooperative"
    assert holder("require:enforced-confinement", Posture("landlock", True, 7)) == "landlock"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    repo = tmp_path / "home" / "project"
    repo.mkdir(parents=True)
    for words in (
        ("init", "-q"),
        ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "commit", "-qm", "0", "--allow-empty"),
        ("worktree", "add", "-q", "--detach", str(tmp_path / "runs" / "workspace")),
    ):
        subprocess.run(["git", *words], cwd=repo, check=True, stdin=subprocess.DEVNULL)
    (tmp_path / "scratch" / "result").mkdir(parents=True)
    (tmp_path / "scratch" / "tmp").mkdir()
    return tmp_path / "runs" / "workspace"


def fence(workspace: Path, *state: str) -> Fence:
    base = workspace.parents[1]
    own = (base / "scratch" / "result", base / "scratch" / "tmp")
    keep_out = {"your configuration": base / "home" / ".config" / "unit-workspace" / "config.toml", HOME: base / "home"}
    needs = Needs(state=tuple(path.replace("BASE", str(base)) for path in state))
    return fence_of(workspace, own, needs, keep_out)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("/", "holds"),
        ("BASE", "holds"),
        ("BASE/home", "holds"),
        ("BASE/home/.config", "holds your configuration"),
        ("BASE/home/project", "holds a Git directory"),
        ("BASE/home/project/.git", "holds a Git directory"),
        ("BASE/home/project/.git/refs", "lies in"),
        ("BASE/home/project/cache", "lies in the checkout"),
        ("BASE/runs", "holds the workspace"),
        ("BASE/scratch", "holds the adapter's scratch folder"),
    ],
)
def test_a_state_folder_cannot_open_what_confinement_is_for(workspace: Path, state: str, why: str) -> None:
    with pytest.raises(Unavailable, match=why):
        fence(workspace, state)


def test_a_link_to_a_forbidden_folder_is_seen_through(workspace: Path) -> None:
    home = workspace.parents[1] / "home"
    (home / "innocent").symlink_to(home / "project" / ".git")
    with pytest.raises(Unavailable, match="Git directory"):
        fence(workspace, "BASE/home/innocent")


def test_a_missing_state_folder_is_made_for_its_user_alone(workspace: Path) -> None:
    made = fence(workspace, "BASE/home/.tool/deep")
    folder = workspace.parents[1] / "home" / ".tool" / "deep"
    assert str(folder) in made.folders
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_a_worker_could_have_planted_in_a_state_folder_opens_nothing(workspace: Path) -> None:
    home = workspace.parents[1] / "home"
    (home / ".tool").mkdir()
    (home / ".tool" / "cache").symlink_to(home / ".tool" / "elsewhere")
    (home / ".tool" / "elsewhere").mkdir()
    found = fence(workspace, "BASE/home/.tool", "BASE/home/.tool/cache")
    assert found.folders[3:] == (str(home / ".tool"),)


def test_the_git_file_is_shielded_and_only_what_exists_is(workspace: Path) -> None:
    base = workspace.parents[1]
    own = (base / "scratch" / "result", base / "scratch" / "tmp")
    tool = base / "home" / ".tool"
    (tool / "hooks").mkdir(parents=True)
    needs = Needs(state=(str(tool),), trusted=(str(tool / "hooks"), str(tool / "none"), "/usr/bin"))
    found = fence_of(workspace, own, needs, {})
    assert found.shielded == (str(workspace / ".git"), str(tool / "hooks"))


def test_bubblewrap_is_told_the_same_fence() -> None:
    fence = Fence(folders=("/w", "/tmp/own"), files=("/home/u/.claude.json",), shielded=("/w/.git",))
    confinement = Confinement(Assessed("on", Posture("bubblewrap", True), "/bin/bwrap"), fence, Path("/w"))
    words = " ".join(confinement.wrap(("/bin/tool", "--flag", "a b")))
    assert words.startswith("/bin/bwrap --die-with-parent --ro-bind / / --dev /dev ")
    assert "--bind /w /w --bind /tmp/own /tmp/own --bind /home/u/.claude.json /home/u/.claude.json" in words
    # What is mounted later hides what was mounted before.
    assert words.index("--ro-bind /w/.git /w/.git") > words.index("--bind /w /w")
    assert words.endswith("--chdir /w -- /bin/tool --flag a b")
    assert confinement.before_exec() is None


def test_each_cli_without_a_sandbox_says_where_its_state_is() -> None:
    confined = {route.harness for route in ROUTES.values() if route.restriction_posture == "cooperative"}
    for harness in confined - {"command"}:
        known = INSTALLATIONS[harness]
        state = located(known.state, {}, "/home/u")
        assert state, harness
        for path in (*state, *located(known.trusted, {}, "/home/u")):
            assert path.startswith("/home/u/."), path
        for trusted in located(known.trusted, {}, "/home/u"):
            assert any(trusted.startswith(folder + "/") for folder in state), trusted


def test_a_variable_moves_the_state_with_it() -> None:
    state = INSTALLATIONS["claude"].state
    assert located(state, {"CLAUDE_CONFIG_DIR": "/elsewhere"}, "/home/u") == ("/elsewhere",)
    assert located(state, {"CLAUDE_CONFIG_DIR": "relative"}, "/home/u") == ("/home/u/.claude",)
