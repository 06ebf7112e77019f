"""`task show` end to end: the real adapter as a process, the real controller, and the command lines it prints, run."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controller.answer import Answer
from controller.commands.task import show
from controller.errors import Blocked, Refused
from tests.adapters.support import REPOSITORY
from tests.host import Host

TASK = """\
---
feature: F-007
write_allowed:
  - src/**
  - "docs/a b:#c.md"
routing:
  needs_judgment: no
  many_files: no
  mechanically_verifiable: yes
---
Count the words.
"""
GOAL = "# Goal\n\n## Fleet\n\n| Worker | Model | Effort |\n|---|---|---|\n| codex | gpt-5.6-terra | high |\n"


class Desk:
    """A repository with one task file, and the adapter's own look-up of it."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.repo = host.repo
        self.file = self.write("docs/tasks/T-1.md", TASK)
        self.env = {**host.env, "CE_PEER_PYTHON": sys.executable}

    def write(self, name: str, text: str) -> Path:
        path = self.repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def configure(self, text: str, mode: int = 0o600) -> Path:
        path = self.host.base / "xdg" / "unit-workspace" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def run(self, *words: str | bytes, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [str(REPOSITORY / "scripts" / "cross-model-work.sh"), "task", *words],
            cwd=cwd or self.repo,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
        assert b"Traceback" not in done.stderr, done.stderr
        return done

    def look(self, *words: str | bytes, cwd: Path | None = None) -> dict[str, Any]:
        done = self.run(*(words or (str(self.file),)), "--json", cwd=cwd)
        assert done.returncode == 0, (done.stdout, done.stderr)
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def refused(self, *words: str | bytes) -> dict[str, Any]:
        done = self.run(*(words or (str(self.file),)), "--json")
        assert done.returncode == 2, done.stdout
        found = json.loads(done.stdout)["refused"]
        assert isinstance(found, dict)
        assert {"message", "expected", "found", "remedy"} <= found.keys() or "config.toml" in found["message"]
        return found


@pytest.fixture
def desk(host: Host) -> Desk:
    return Desk(host)


@pytest.fixture
def asked(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """The controller's function is called in this process; the adapter that it asks is a real one."""
    for name in list(os.environ):
        if name not in desk.env:
            monkeypatch.delenv(name)
    for name, value in desk.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("UNIT_WORKSPACE_SCRIPTS_DIR", str(REPOSITORY / "scripts"))
    monkeypatch.chdir(desk.repo)
    return desk


def arguments(answer: Answer, name: str) -> list[str]:
    """The words after the program, which stands beside the adapter; `Host.call` runs the same one of this checkout."""
    words = answer.body["commands"][name]["argv"]
    program = words[: words.index(name)]
    assert program[-1].endswith("unit-workspace.py")
    return list(words[len(program) :])


# --- the adapter ----------------------------------------------------------------------------------------------------


def test_a_task_is_described_whole(desk: Desk) -> None:
    found = desk.look()
    assert found["worker"] | {"route": "codex", "model": "gpt-5.6-luna", "effort": "medium"} == found["worker"]
    assert found["scope"] == {"write_allowed": ["src/**", "docs/a b:#c.md"], "read_allowed": [], "read_only": False}
    assert found["task"]["feature"] == "F-007"
    assert found["task"]["sha256"] == hashlib.sha256(TASK.encode()).hexdigest()
    assert found["task"]["path_in_repository"] == "docs/tasks/T-1.md"
    assert [step["outcome"] for step in found["why"]["steps"]] == ["absent", "absent", "absent", "taken"]


def test_globs_are_not_expanded_where_their_files_exist(desk: Desk) -> None:
    desk.write("src/one.ts", "1")
    desk.write("src/two.ts", "2")
    assert desk.look("docs/tasks/T-1.md", cwd=desk.repo)["scope"]["write_allowed"][0] == "src/**"


def test_goal_and_configuration_are_read_from_where_they_belong(desk: Desk) -> None:
    desk.configure(
        '[models.cost-aware.codex]\nstandard = "gpt-6"\n'
        '[fleet]\nstance = "cost-aware"\n[fleet.codex]\ntier = "standard"\n'
    )
    assert desk.look()["worker"]["model"] == "gpt-6"
    desk.write("GOAL.md", GOAL)
    found = desk.look()
    assert (found["worker"]["model"], found["worker"]["effort"]) == ("gpt-5.6-terra", "high")
    assert found["why"]["fleet_in_force"] is True
    assert [step["place"] for step in found["why"]["steps"]] == [
        None,
        "GOAL.md line 7",
        f"{desk.host.base}/xdg/unit-workspace/config.toml [fleet.codex]",
        "seed 003",
    ]


def test_a_repository_cannot_bring_a_configuration(desk: Desk) -> None:
    path = desk.write("cfg/unit-workspace/config.toml", '[models.codex]\nlight = "gpt-9"\n')
    path.chmod(0o600)
    done = desk.run(str(desk.file), "--json", XDG_CONFIG_HOME=str(desk.repo / "cfg"))
    assert done.returncode == 2
    assert "unset XDG_CONFIG_HOME" in json.loads(done.stdout)["refused"]["message"]


@pytest.mark.parametrize(
    ("text", "mode", "word"),
    [
        ('[models.codex]\nlight = "gpt-6"\n', 0o622, "others may write it"),
        ("[models.codex\n", 0o600, "is not TOML"),
        ('[modles.codex]\nlight = "gpt-6"\n', 0o600, "did you mean 'models'"),
        ('[models.codex]\nligth = "gpt-6"\n', 0o600, "did you mean 'light'"),
        ('[models]\nbalanced = {}\ncodex = {light = "gpt-6"}\n', 0o600, "mixes stances"),
    ],
)
def test_a_configuration_that_cannot_be_trusted_or_understood_is_refused(
    desk: Desk, text: str, mode: int, word: str
) -> None:
    desk.configure(text, mode)
    assert word in json.dumps(desk.refused())


def test_what_is_no_regular_file_of_text_is_refused_at_once(desk: Desk) -> None:
    (desk.repo / "link.md").symlink_to(desk.file)
    os.mkfifo(desk.repo / "fifo.md")
    (desk.repo / "big.md").write_bytes(TASK.encode() + b"x" * 200_001)
    (desk.repo / "latin.md").write_bytes(TASK.encode() + b"\xe9")
    for name, word in (
        ("link.md", "a symbolic link"),
        ("fifo.md", "not a regular file"),
        ("docs", "not a regular file"),
        ("absent.md", "No such file"),
        ("big.md", "more than 200000 bytes"),
        ("latin.md", "byte 0xe9"),
    ):
        assert word in json.dumps(desk.refused(name)), name


def test_a_goal_that_is_a_link_or_no_text_is_refused(desk: Desk) -> None:
    elsewhere = desk.host.base / "elsewhere.md"
    elsewhere.write_text(GOAL)
    (desk.repo / "GOAL.md").symlink_to(elsewhere)
    assert "a symbolic link" in json.dumps(desk.refused())
    (desk.repo / "GOAL.md").unlink()
    (desk.repo / "GOAL.md").write_bytes(b"\xff")
    assert "not UTF-8" in desk.refused()["message"]


def test_a_task_file_whose_name_is_no_utf8_is_described(desk: Desk) -> None:
    name = os.fsencode(desk.repo / "docs") + b"/t\xff 'x'.md"
    Path(os.fsdecode(name)).write_text(TASK.replace("---\n", "---\nid: T-2\n", 1))
    assert desk.look(name)["task"]["path_in_repository"] == os.fsdecode(b"docs/t\xff 'x'.md")


def test_the_repository_is_found_or_asked_for(desk: Desk, tmp_path: Path) -> None:
    outside = tmp_path / "T-3.md"
    outside.write_text(TASK)
    assert desk.look(str(outside), "--repo", str(desk.repo / "dir"), cwd=tmp_path)["repository"] == str(desk.repo)
    assert desk.look(str(outside), cwd=desk.repo / "dir")["task"]["path_in_repository"] is None
    done = desk.run(str(outside), "--json", cwd=tmp_path)
    assert "--repo" in json.loads(done.stdout)["refused"]["remedy"]
    assert "no directory" in desk.refused(str(outside), "--repo", str(tmp_path / "absent"))["message"]


@pytest.mark.parametrize("words", [(), ("a", "b"), ("--jsn", "a"), ("a", "--repo")])
def test_another_command_line_is_answered_with_the_usage(desk: Desk, words: tuple[str, ...]) -> None:
    done = desk.run(*words)
    assert done.returncode == 2
    assert b"usage: cross-model-work task <file>" in done.stderr
    assert done.stdout == b""


def test_people_get_lines_that_every_terminal_can_show(desk: Desk) -> None:
    desk.write("docs/tasks/T-1.md", TASK.replace("F-007", "Zeichen\u0142 zählen"))
    done = subprocess.run(
        [sys.executable, "-P", "-c", "from adapters.cli import main; main()", "task", str(desk.file)],
        env={**desk.env, "PYTHONPATH": str(REPOSITORY), "PYTHONIOENCODING": "ascii"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"worker    codex, model gpt-5.6-luna, effort medium (economy default)" in done.stdout
    assert done.stdout.isascii()
    refused = desk.run(str(desk.repo / "absent.md"))
    assert refused.returncode == 2 and b"to do: check the path" in refused.stderr


def test_nothing_is_written_and_a_secret_is_never_printed(desk: Desk) -> None:
    before = desk.host.fingerprint()
    secret = "ghp_" + hashlib.sha256(b"no real one").hexdigest()[:36]
    file = desk.repo / "docs" / "T-9.md"
    file.write_text(TASK + f"Use {secret}.\n")
    for words in ((), ("--json",)):
        done = desk.run(str(file), *words)
        assert done.returncode == 2
        assert b"line 12: GitHub token" in done.stdout + done.stderr
        assert secret.encode() not in done.stdout + done.stderr
    file.unlink()
    assert desk.host.fingerprint() == before


# --- the controller -------------------------------------------------------------------------------------------------


def test_the_printed_command_lines_begin_the_run(asked: Desk) -> None:
    answer = show(file="docs/tasks/T-1.md", run_id=None, repo=None)
    assert answer.word == "TASK"
    assert list(answer.body["commands"]) == ["init", "checkpoint-plan", "prepare"]
    for name, word in (("init", "READY"), ("checkpoint-plan", "CHECKPOINTED"), ("prepare", "PREPARED")):
        asked.host.call(*arguments(answer, name), cwd=asked.host.base).expect(word)
    run = answer.body["run_id"]
    assert run.startswith("T-1-")
    unit = asked.host.unit("T-1", run)
    assert unit["packet_digest"] == hashlib.sha256(TASK.encode()).hexdigest()
    manifest = asked.host.manifest(run)
    assert manifest["binding"]["model"] == "gpt-5.6-luna"
    assert manifest["egress"]["effort"] == "medium"


def test_a_shell_reads_each_line_as_the_same_words(asked: Desk) -> None:
    path = asked.write("docs/it's $HOME `x`.md", TASK.replace("---\n", "---\nid: T-2\n", 1))
    answer = show(file=str(path), run_id="r 1".replace(" ", "-"), repo=str(asked.repo))
    for command in answer.body["commands"].values():
        script = 'for word; do printf "%s\\0" "$word"; done'
        shell = subprocess.run(
            ["/bin/sh", "-c", f"set -- {command['shell']}\n{script}"],
            capture_output=True,
            check=True,
            env={"PATH": "/x"},
        )
        assert [os.fsdecode(word) for word in shell.stdout.split(b"\0")[:-1]] == command["argv"]


def test_a_task_outside_the_repository_is_a_prompt_brief(asked: Desk) -> None:
    outside = asked.host.base / "T-5.md"
    outside.write_text(TASK.replace("---\n", "---\ndepends_on: [T-1]\nattempt: 2\n", 1))
    asked.file.unlink()  # it would be dirt
    answer = show(file=str(outside), run_id="r5", repo=str(asked.repo))
    assert list(answer.body["commands"]) == ["init", "prepare"]
    asked.host.call(*arguments(answer, "init")).expect("READY")
    prepare = arguments(answer, "prepare")
    assert prepare[-2:] == ["--dependency", "T-1"] and "attempt-2" in prepare
    asked.host.call(*prepare).expect("PREPARED")


def test_a_rewritten_task_gets_a_run_of_its_own(asked: Desk) -> None:
    first = show(file=str(asked.file), run_id=None, repo=None).body["run_id"]
    asked.file.write_text(TASK + "And the lines.\n")
    assert show(file=str(asked.file), run_id=None, repo=None).body["run_id"] != first


def test_a_long_id_still_gives_a_run_id(asked: Desk) -> None:
    asked.write("docs/tasks/T-1.md", TASK.replace("---\n", f"---\nid: {'a' * 128}\n", 1))
    assert len(show(file=str(asked.file), run_id=None, repo=None).body["run_id"]) == 128


def test_a_refusal_of_the_adapter_keeps_what_was_expected_found_and_to_do(asked: Desk) -> None:
    asked.write("docs/tasks/T-1.md", TASK.replace("feature: F-007", "feature: F-7, F-8"))
    with pytest.raises(Refused) as caught:
        show(file=str(asked.file), run_id=None, repo=None)
    error = caught.value
    assert error.message == "the task names 2 features"
    assert (error.expected, error.found) == ("feature: exactly one", "'F-7, F-8'")
    assert error.remedy is not None and error.body()["line"] == 2
    with pytest.raises(Refused):
        show(file=str(asked.file), run_id="a/b", repo=None)


def test_an_adapter_that_is_missing_or_silent_is_no_traceback(
    asked: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UNIT_WORKSPACE_SCRIPTS_DIR", str(tmp_path))
    with pytest.raises(Blocked) as caught:
        show(file=str(asked.file), run_id=None, repo=None)
    assert "could not be asked" in caught.value.message
    script = tmp_path / "cross-model-work.sh"
    for text, word in (("echo no >&2; exit 2", "no answer: no"), ("echo 5", "no answer"), ("echo '[]'", "no answer")):
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
        with pytest.raises(Blocked) as caught:
            show(file=str(asked.file), run_id=None, repo=None)
        assert word in caught.value.message
