"""Preflight finds out what it can about a route, and nothing ever leaves the machine for it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from adapters import landlock
from tests.adapters.support import REPOSITORY

FLAGS = {
    "codex": "--ignore-user-config --ignore-rules --ephemeral --json --skip-git-repo-check -s -C -o -c -m",
    "claude": "-p --output-format --verbose --permission-mode --model",
}
HELP = {"codex": "exec --help", "claude": "--help"}
CLI = """\
#!/bin/sh
{{ echo "CALL $*"; env; }} >> "$TMPDIR/said" 2>/dev/null
case "$*" in
--version) echo "{name} 1.2.3"; {version}; exit 0;;
"{help}") echo "  {flags}"; exit 0;;
esac
echo leaked > {base}/called
exit 1
"""


class Machine:
    """A user's machine with some CLIs installed."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.bin = base / "bin"
        self.home = base / "home"
        self.tmp = base / "tmp"
        for folder in (self.bin, self.home, self.tmp):
            folder.mkdir()
        self.environment = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.home), "TMPDIR": str(self.tmp)}

    def install(self, name: str, flags: str | None = None, version: str = "true") -> Path:
        path = self.bin / name
        flags = FLAGS[name] if flags is None else flags
        path.write_text(CLI.format(name=name, help=HELP[name], flags=flags, version=version, base=self.base))
        path.chmod(0o755)
        return path

    def call(
        self, *arguments: str, before: tuple[str, ...] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*before, sys.executable, "-P", "-c", "from adapters.cli import main; main()", *arguments],
            env={**self.environment, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1", **environment},
            cwd=self.base,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert list(self.tmp.iterdir()) == [], "a scratch folder was left"
        assert not (self.base / "called").exists(), "the CLI was asked for more than version and help"
        return done

    def preflight(self, *arguments: str, code: int = 0, **environment: str) -> dict[str, Any]:
        done = self.call("preflight", *arguments, before=(), **environment)
        assert done.returncode == code, (done.stdout, done.stderr)
        report = json.loads(done.stdout)
        assert isinstance(report, dict)
        return report


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_installed_cli_is_described(machine: Machine) -> None:
    path = machine.install("claude")
    report = machine.preflight("--route", "claude", "--model", "opus")
    assert report["available"] is True
    assert (report["reason"], report["detail"]) == (None, None)
    assert (report["installed"], report["executable"], report["version"]) == (True, str(path), "claude 1.2.3")
    assert report["flags"] == {"status": "ok", "missing": []}
    assert report["authenticated"] == {"state": "unknown", "evidence": None}
    assert (report["target"], report["harness"], report["intermediaries"]) == ("claude", "claude", [])
    assert report["model_requested"] == "opus"


@pytest.mark.skipif(landlock.supported_abi() < 3, reason="this kernel's Landlock is too old or missing")
def test_how_restrictions_would_be_enforced_is_told(machine: Machine) -> None:
    machine.install("claude")
    machine.install("codex")
    held = machine.preflight("--route", "claude")["restrictions"]
    assert (held["confinement"], held["enforced"], held["abi"]) == ("landlock", True, landlock.supported_abi())
    assert held["git_file"] in ("read-only", "writable")
    held = machine.preflight("--route", "codex")["restrictions"]
    assert (held["confinement"], held["enforced"], held["git_file"]) == ("cli-sandbox", True, None)


def test_a_cli_that_is_not_installed(machine: Machine) -> None:
    report = machine.preflight("--route", "claude", code=2)
    assert (report["available"], report["installed"]) == (False, False)
    assert report["reason"] == "fixed route executable 'claude' is unavailable"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--route", "codex", "--model", "opus"), "model 'opus' is not compatible with route 'codex'"),
        (("--route", "claude", "--restriction", "require:no-network"), "cannot be enforced on route 'claude'"),
        (("--route", "command"), "no command named"),
    ],
)
def test_why_a_route_is_unavailable(machine: Machine, arguments: tuple[str, ...], reason: str) -> None:
    machine.install("claude")
    machine.install("codex")
    report = machine.preflight(*arguments, code=2)
    assert reason.replace("no command named", "needs one configured command") in report["reason"]


def test_a_flag_that_is_gone_is_named_before_anything_is_sent(machine: Machine) -> None:
    machine.install("codex", FLAGS["codex"].replace(" --ephemeral", ""))
    report = machine.preflight("--route", "codex", code=2)
    assert report["flags"] == {"status": "missing", "missing": ["--ephemeral"]}
    assert report["detail"] == "cli_incompatible"
    assert "--ephemeral" in report["reason"]


def test_a_longer_flag_does_not_stand_for_a_shorter_one(machine: Machine) -> None:
    machine.install("codex", FLAGS["codex"].replace("--json", "--json-schema"))
    assert machine.preflight("--route", "codex", code=2)["flags"]["missing"] == ["--json"]


@pytest.mark.parametrize("page", ["", "This program has moved to another name.", "Usage: claude [--other]"])
def test_a_page_that_tells_nothing_refuses_nothing(machine: Machine, page: str) -> None:
    machine.install("claude", page)
    report = machine.preflight("--route", "claude")
    assert report["flags"] == {"status": "unknown", "missing": []}


def test_a_credential_file_is_evidence_and_is_not_read(machine: Machine) -> None:
    machine.install("codex")
    file = machine.home / ".codex" / "auth.json"
    file.parent.mkdir()
    file.write_text("secret")
    file.chmod(0o000)
    report = machine.preflight("--route", "codex")
    assert report["authenticated"] == {"state": "yes", "evidence": str(file)}
    elsewhere = machine.base / "codex-home"
    elsewhere.mkdir()
    assert machine.preflight("--route", "codex", CODEX_HOME=str(elsewhere))["authenticated"]["state"] == "unknown"


def test_the_cli_is_asked_without_the_users_home_keys_or_terminal(machine: Machine) -> None:
    path = machine.install("claude")
    told = machine.base / "told"
    # What it can tell comes through its version line: it may write nowhere that would last.
    path.write_text(
        '#!/bin/sh\n[ "$1" = --version ] || exit 0\n'
        f'case "$HOME" in {machine.tmp}/*) home=private;; *) home=$HOME;; esac\n'
        'printf "%s" "$home|$(env | grep -c KEY)|$(tty)|$(cat | wc -c)|$(ls -A "$HOME" | wc -l)"\n'
        f"echo x > {told}\nexit 0\n"
    )
    report = machine.preflight("--route", "claude", OPENAI_API_KEY="k", CLAUDE_CONFIG_DIR="/c")
    assert report["version"].split("|") == ["private", "0", "not a tty", "0", "0"]
    if landlock.supported_abi():
        assert not told.exists()


def test_the_cli_cannot_reach_anybody_while_it_is_asked(machine: Machine) -> None:
    if landlock.supported_abi() < 4:
        pytest.skip("this kernel's Landlock does not know networks")
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        port = server.getsockname()[1]
        path = machine.install("claude")
        path.write_text(
            f"#!{sys.executable} -IS\nimport socket, sys\n"
            f"try:\n    socket.create_connection(('127.0.0.1', {port}), 2)\n    print('connected')\n"
            "except OSError as error:\n    print('refused:', error.errno)\n"
        )
        assert machine.preflight("--route", "claude")["version"].startswith("refused")
        with pytest.raises(BlockingIOError):
            server.accept()


def test_preflight_itself_needs_no_network(machine: Machine) -> None:
    isolated = ("unshare", "--net", "--map-root-user")
    if shutil.which("unshare") is None or subprocess.run([*isolated, "true"], check=False).returncode != 0:
        pytest.skip("unshare makes no network namespace for this user")
    machine.install("codex")
    done = machine.call("preflight", "--route", "codex", before=isolated)
    assert (done.returncode, json.loads(done.stdout)["available"]) == (0, True)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_no_socket_is_opened_to_anybody(machine: Machine) -> None:
    machine.install("codex")
    trace = machine.base / "trace"
    tracer = ("strace", "-f", "-e", "trace=%network", "-o", str(trace))
    if subprocess.run([*tracer, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("strace may not trace here")
    done = machine.call("preflight", "--route", "codex", before=tracer)
    assert done.returncode == 0, done.stderr
    assert "AF_INET" not in trace.read_text()


def test_answers_are_remembered_for_one_binary(machine: Machine) -> None:
    machine.install("claude")
    assert machine.preflight("--route", "claude")["version"] == "claude 1.2.3"
    (cache,) = (machine.home / ".cache" / "unit-workspace").iterdir()
    record = json.loads(cache.read_text())
    cache.write_text(json.dumps({**record, "version": "remembered"}))
    assert machine.preflight("--route", "claude")["version"] == "remembered"
    # An update changes size, time or inode.
    machine.install("claude", FLAGS["claude"] + " --new")
    assert machine.preflight("--route", "claude")["version"] == "claude 1.2.3"


@pytest.mark.parametrize("change", [{"at": 0.0}, {"path": "/other"}, {"v": "x"}, None])
def test_a_memory_that_is_stale_or_damaged_is_not_believed(machine: Machine, change: dict[str, Any] | None) -> None:
    machine.install("claude")
    machine.preflight("--route", "claude")
    (cache,) = (machine.home / ".cache" / "unit-workspace").iterdir()
    record = {**json.loads(cache.read_text()), "version": "wrong"}
    cache.write_text("{" if change is None else json.dumps({**record, **change}))
    assert machine.preflight("--route", "claude")["version"] == "claude 1.2.3"


def test_a_memory_that_others_could_have_written_is_not_believed(machine: Machine) -> None:
    machine.install("claude")
    machine.preflight("--route", "claude")
    (cache,) = (machine.home / ".cache" / "unit-workspace").iterdir()
    cache.write_text(cache.read_text().replace("1.2.3", "6.6.6"))
    cache.chmod(0o666)
    assert machine.preflight("--route", "claude")["version"] == "claude 1.2.3"


def test_a_mended_cli_behind_a_wrapper_is_asked_again(machine: Machine) -> None:
    # The wrapper stays as it is when the program behind it is replaced.
    real = machine.install("codex", FLAGS["codex"].replace(" --ephemeral", ""))
    hidden = real.rename(machine.base / "real-codex")
    real.write_text(f'#!/bin/sh\nexec {hidden} "$@"\n')
    real.chmod(0o755)
    assert machine.preflight("--route", "codex", code=2)["detail"] == "cli_incompatible"
    hidden.write_text(hidden.read_text().replace("--json", "--ephemeral --json"))
    assert machine.preflight("--route", "codex")["available"] is True


def test_without_a_place_for_the_memory_it_works_all_the_same(machine: Machine) -> None:
    machine.install("claude")
    (machine.base / "file").write_text("")
    report = machine.preflight("--route", "claude", XDG_CACHE_HOME=str(machine.base / "file"))
    assert report["version"] == "claude 1.2.3"


def test_a_cli_that_hangs_is_ended_and_its_version_unknown(machine: Machine) -> None:
    machine.install("claude", version="sleep 600 & sleep 600")
    begun = time.monotonic()
    report = machine.preflight("--route", "claude")
    assert time.monotonic() - begun < 15
    assert report["version"] is None
    assert report["flags"]["status"] == "ok"
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(machine.bin) not in left


def test_a_stop_signal_ends_it_and_the_cli(machine: Machine) -> None:
    machine.install("claude", version="sleep 600")
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", "from adapters.cli import main; main()", "preflight", "--route", "claude"],
        env={**machine.environment, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 10
    while not list(machine.tmp.glob("*/probe/said")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 143
    assert b"Traceback" not in stderr
    assert list(machine.tmp.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [("--route", "claud"), ("--model", "x"), ("--route", "claude", "--colour", "red")]
)
def test_a_mistake_on_the_command_line_is_named(machine: Machine, arguments: tuple[str, ...]) -> None:
    done = machine.call("preflight", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "claude" in done.stderr or "--route" in done.stderr or "--colour" in done.stderr


def test_a_user_named_command_is_found_with_its_own_rules(machine: Machine) -> None:
    tool = machine.bin / "tool"
    tool.write_text(f"#!/bin/sh\necho leaked > {machine.base}/called\n")
    tool.chmod(0o755)
    config = machine.home / ".config" / "unit-workspace" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[commands.mine]\nargv = ["tool"]\nconfinement = "off"\n')
    config.chmod(0o600)
    report = machine.preflight("--route", "command")
    assert (report["executable"], report["version"]) == (str(tool), None)
    assert report["restrictions"]["confinement"] == "cooperative"
    assert "off" in report["restrictions"]["note"]
    refused = machine.preflight("--route", "command", code=2, CE_WORK_REQUIRE_ENFORCED_CONFINEMENT="1")
    assert "cooperative" in refused["reason"]
