"""The whole protocol on a clone of this repository, one command after the other, as a host would drive it.

Act one: a plan, one unit, a commit, RUN_VERIFIED. Act two: a unit that fails verification, put back exactly.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from _demo_host import Host, Stop
from _demo_shop import REPOSITORY, Shop
from _demo_units import BRIEF, FASTER, PLAN, PLAN_PATH, WORDS, Unit

TESTS = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
PLAN_WIDE_TESTS = "tests/scripts/test_install_scripts.py"
IGNORED = "build/local-settings.ini"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--agent", choices=["command", "codex"], default="command", help="who authors the units")
    parser.add_argument("--keep", action="store_true", help="leave the temporary folder in place")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    began = time.monotonic()
    try:
        with Shop(options.agent, keep=options.keep) as shop:
            host = Host(shop.env, shop.checkout)
            clone(host)
            if options.agent == "command":
                host.note("the author: a command of the user's own, from the user's configuration")
                host.shell("cat", str(shop.config))
            success(host, shop)
            first = time.monotonic() - began
            failure(host, shop)
            host.title("Done")
            print(f"act one {first:.1f} s, act two {time.monotonic() - began - first:.1f} s")
    except Stop as stop:
        print(f"\ndemo: stopped: {stop}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; its folder and jobs are gone", file=sys.stderr)
        return 130
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def clone(host: Host) -> None:
    """A real repository to work on: this one, as it was last committed."""
    host.title("A clone of this repository, and a plan")
    host.checkout.parent.mkdir(exist_ok=True)
    source = str(REPOSITORY)
    done = subprocess.run(["git", "clone", "--quiet", source, str(host.checkout)], check=False, env=host.env)
    if done.returncode != 0 or not (host.checkout / "pyproject.toml").is_file():
        raise Stop(f"{source} could not be cloned: it must be a git checkout with at least one commit")
    if not host.shell("git", "config", "--default", "", "--get", "user.email", quiet=True):
        host.note("git knows no author here: the clone gets one of its own")
        host.shell("git", "config", "user.name", "Demo")
        host.shell("git", "config", "user.email", "demo@localhost")
    plan = host.checkout / PLAN_PATH
    plan.parent.mkdir(parents=True, exist_ok=True)
    plan.write_text(PLAN)
    ignored = host.checkout / IGNORED
    ignored.parent.mkdir(exist_ok=True)
    ignored.write_text("mine = yes\n")
    host.shell("git", "status", "--short", "--branch", "--ignored")


def sanction(shop: Shop) -> list[str]:
    """The two JSON arguments of `init`: who may author, and through whom the material goes."""
    model = "demo" if shop.agent == "command" else None
    binding = {"mode": "require", "target": shop.agent, "model": model, "source": "scripts/demo"}
    egress = {"route": shop.agent, "intermediaries": [], "restrictions": []}
    return ["--binding-json", json.dumps(binding), "--egress-json", json.dumps(egress)]


def success(host: Host, shop: Shop) -> None:
    host.title("Act one: from the plan to a verified commit")
    digest = hashlib.sha256(PLAN.encode()).hexdigest()
    source = ["--repo", str(host.checkout), "--plan", PLAN_PATH, "--plan-digest", digest]
    host.begin("--run-id", "demo", *source, *sanction(shop), expect="READY")
    host.follow("checkpoint-plan", expect="CHECKPOINTED")
    author(host, shop, WORDS)

    host.title("Integrate: apply, verify with a real test run, commit")
    message = {"--commit-message": "Count words"}
    host.follow("integrate", message, then=[*TESTS, "demo"], expect="UNIT_COMMITTED")
    host.shell("git", "log", "--oneline", "--stat", "-1")
    existing = [PLAN_WIDE_TESTS] if (host.checkout / PLAN_WIDE_TESTS).exists() else []
    host.follow("verify-run", then=[*TESTS, "demo", *existing], expect="RUN_VERIFIED")

    host.title("The journal")
    host.show("unit-workspace", "journal", "show", "--run-id", "demo")


def failure(host: Host, shop: Shop) -> None:
    host.title("Act two: a unit whose verification fails is put back, byte for byte")
    brief = shop.folder / "brief.md"
    brief.write_text(BRIEF)
    digest = hashlib.sha256(BRIEF.encode()).hexdigest()
    source = ["--repo", str(host.checkout), "--prompt-brief", str(brief), "--prompt-digest", digest]
    host.begin("--run-id", "demo-failure", *source, *sanction(shop), expect="READY")
    author(host, shop, FASTER)

    before = canonical_state(host, "before")
    message = {"--commit-message": "Count words faster"}
    refused = host.follow("integrate", message, then=[*TESTS, "demo"], expect="BLOCKED")
    if refused.body.get("verification_exit") != 1:
        raise Stop(f"expected the unit's tests to fail with exit 1; {refused}")
    host.note("what the tests said, from the private log")
    print("\n".join(Path(refused.body["verification_log"]).read_text().splitlines()[-4:]))
    if canonical_state(host, "after") != before:
        raise Stop("the canonical checkout is not what it was before the unit")
    host.note("the same: HEAD, branch, status, tracked and ignored bytes. The unit can be given up now")
    host.follow("cleanup", expect="CLEANED")


def canonical_state(host: Host, when: str) -> list[str]:
    host.note(f"the canonical checkout {when} the integration")
    files = ["README.md", "demo/words.py", PLAN_PATH, IGNORED]
    return [
        host.shell("git", "rev-parse", "HEAD"),
        host.shell("git", "status", "--branch", "--porcelain", "--ignored"),
        host.shell("sha256sum", *files),
    ]


def author(host: Host, shop: Shop, unit: Unit) -> None:
    """Prepare, dispatch, watch and terminalize one unit, then inspect its scope."""
    host.title(f"Author the unit {unit.name} in a worktree of its own")
    packet = shop.folder / f"packet-{unit.name}.md"
    packet.write_text(unit.packet)
    base = host.shell("git", "rev-parse", "HEAD")
    given = {"--unit-id": unit.name, "--base": base, "--packet": str(packet)}
    prepared = host.follow("prepare", given, expect="PREPARED").body
    job = host.follow_runner("start")
    host.follow("record-job", {"--job-id": job}, expect="AUTHORING")

    word = "running"
    while word == "running":
        word = host.follow_runner("wait")
        synced = host.follow("sync-job", expect="SYNCED")
    if word != "done":
        log = Path(prepared["result_dir"], "adapter.log")
        detail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        raise Stop(f"expected the job to end as done, found {word}; {synced}\n{detail}")
    transport = host.follow("terminalize", expect="INTEGRATION_PENDING").body["transport"]

    host.note("before anything touches the checkout: is what came back what the packet asked for?")
    host.shell("git", "diff", "--stat", "--summary", base, str(transport["commit"]))
    if sorted(transport["changed_paths"]) != unit.changed:
        raise Stop(f"the unit changed {transport['changed_paths']}, its packet names {unit.changed}")


if __name__ == "__main__":
    sys.exit(main())
