"""`unit-workspace`: one function a command; each prints a status word and one JSON object, nothing else.

The protocol's commands; `cli_people` has those for people and upkeep.
"""

from __future__ import annotations

import sys
from typing import Any

import click

import controller.cli_people  # noqa: F401 - registers its commands
from controller.frame import answer
from controller.options import argv, attempt_id, cli, command, job_id, queue, run_id, timeout, token, unit_id, wait
from runner.start_up import complain, forget_stdout, start_up


@command(
    "init",
    run_id,
    click.option("--repo", required=True),
    click.option("--plan"),
    click.option("--plan-digest"),
    click.option("--prompt-brief"),
    click.option("--prompt-digest"),
    click.option("--binding-json", default="{}"),
    click.option("--egress-json", default="{}"),
)
def init(plan: str | None, prompt_brief: str | None, **arguments: Any) -> None:
    """Begin a run on the repository's current branch, with one plan or prompt brief and one recipient."""
    from controller.commands.init import init as run

    if (plan is None) == (prompt_brief is None):
        raise click.UsageError("exactly one of --plan and --prompt-brief is required")
    answer(run, plan=plan, prompt_brief=prompt_brief, **arguments)


@command("checkpoint-plan", run_id, wait)
def checkpoint_plan(**arguments: Any) -> None:
    """Commit the selected plan, if it is the only change."""
    from controller.commands.checkpoint import checkpoint_plan as run

    answer(run, **arguments)


@command(
    "prepare",
    run_id,
    unit_id,
    click.option("--base", required=True, help="The commit to work on; the canonical HEAD."),
    click.option(
        "--packet",
        required=True,
        type=click.Path(),
        help="File with the unit's packet, outside the checkout.",
    ),
    click.option("--attempt-id", default="attempt-1", show_default=True),
    click.option(
        "--activity-posture",
        type=click.Choice(["incremental", "hard-only"]),
        default="hard-only",
        show_default=True,
    ),
    click.option("--dependency", multiple=True),
    click.option("--wave-id"),
    click.option("--wave-position", type=int, default=0),
    wait,
)
def prepare(unit_id: str, **arguments: Any) -> None:
    """Give one attempt of a unit its packet, authorization and private workspace."""
    from controller.commands.prepare import prepare as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command(
    "authorize-dispatch",
    run_id,
    unit_id,
    attempt_id,
    job_id,
    click.option("--authorization", required=True),
    click.option("--authorization-digest", required=True),
    click.option("--workspace", required=True),
    click.option("--packet", required=True),
    click.option("--packet-digest", required=True),
    click.option("--result-dir", required=True),
    click.option("--wait-lock", "wait", type=click.FloatRange(0, 60), default=60, show_default=True),
)
def authorize_dispatch(unit_id: str, **arguments: Any) -> None:
    """The adapter's handshake: bind its job to the attempt before anything leaves the host."""
    from controller.commands.dispatch import authorize_dispatch as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command("record-job", run_id, unit_id, attempt_id, job_id, wait)
def record_job(unit_id: str, **arguments: Any) -> None:
    """Confirm the job that `peer-job-runner start` returned."""
    from controller.commands.dispatch import record_job as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command("sync-job", run_id, unit_id, wait)
def sync_job(unit_id: str, **arguments: Any) -> None:
    """Take over what the runner says of the unit's job."""
    from controller.commands.dispatch import sync_job as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command("reap", run_id, unit_id, wait)
def reap(unit_id: str, **arguments: Any) -> None:
    """End the unit's job, whole tree, and take over how it ended."""
    from controller.commands.dispatch import reap as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command("terminalize", run_id, unit_id, wait)
def terminalize(unit_id: str, **arguments: Any) -> None:
    """Turn the output of a finished job into one transport commit."""
    from controller.commands.terminalize import terminalize as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command("integration-acquire", run_id, unit_id, click.option("--resume", is_flag=True), queue)
def integration_acquire(unit_id: str, wait_lock: float, **arguments: Any) -> None:
    """Manual step 1: hold the branch's integration lock."""
    from controller.commands.integration import acquire as run

    answer(lambda: run(unit_id=unit_id, wait=wait_lock, **arguments), unit_id)


@command("preflight", run_id, unit_id, token, click.option("--allowed-head", multiple=True), wait)
def preflight(unit_id: str, **arguments: Any) -> None:
    """Manual step 2: prove that the transport can be applied, touching nothing."""
    from controller.commands.integration import preflight as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command("mark-applied", run_id, unit_id, token, wait)
def mark_applied(unit_id: str, **arguments: Any) -> None:
    """Manual step 3: the transport is applied, exactly and alone."""
    from controller.commands.integration import mark_applied as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command(
    "mark-verified",
    run_id,
    unit_id,
    token,
    click.option("--evidence-digest", required=True),
    click.option("--summary", default="authoritative verification passed", show_default=True),
    click.option("--ignored-state"),
    wait,
)
def mark_verified(unit_id: str, **arguments: Any) -> None:
    """Manual step 4: the host's verification passed."""
    from controller.commands.integration import mark_verified as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command("mark-committed", run_id, unit_id, token, wait)
def mark_committed(unit_id: str, **arguments: Any) -> None:
    """Manual step 5: the host's commit is HEAD."""
    from controller.commands.integration import mark_committed as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command("restore", run_id, unit_id, token, wait)
def restore(unit_id: str, **arguments: Any) -> None:
    """Put the checkout back to what it was before the apply, and prove it."""
    from controller.commands.integration import restore as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command("integration-release", run_id, unit_id, token, wait)
def integration_release(unit_id: str, **arguments: Any) -> None:
    """Last manual step: let the integration lock go."""
    from controller.commands.integration import release as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command(
    "integrate",
    run_id,
    unit_id,
    click.option("--commit-message", required=True),
    click.option("--verification-summary", default="authoritative verification passed", show_default=True),
    click.option("--allowed-head", multiple=True),
    timeout,
    queue,
    argv,
)
def integrate(unit_id: str, **arguments: Any) -> None:
    """Apply, verify (command after --), commit, clean up and release; or put every byte back."""
    from controller.commands.integrate import integrate as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command(
    "verify-run",
    run_id,
    click.option(
        "--verification-summary",
        "summary",
        default="plan-wide authoritative verification passed",
        show_default=True,
    ),
    timeout,
    queue,
    argv,
)
def verify_run(**arguments: Any) -> None:
    """Run the plan-wide verification (command after --) on the finished branch."""
    from controller.commands.verify_run import verify_run as run

    answer(run, **arguments)


@command(
    "cleanup",
    run_id,
    unit_id,
    click.option("--abandon", is_flag=True),
    click.option("--expect-transport"),
    click.option("--expect-job"),
    wait,
)
def cleanup(unit_id: str, **arguments: Any) -> None:
    """Remove a committed or abandoned unit's workspace and ref; keep its evidence."""
    from controller.commands.cleanup import cleanup as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command(
    "claim-fallback",
    run_id,
    unit_id,
    click.option("--caller-mode", type=click.Choice(["interactive", "headless"]), required=True),
    wait,
)
def claim_fallback(unit_id: str, **arguments: Any) -> None:
    """Authorize the one native implementation of a unit whose worker has failed."""
    from controller.commands.fallback import claim as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command(
    "complete-fallback",
    run_id,
    unit_id,
    click.option("--accepted-head", required=True),
    click.option("--evidence-digest", required=True),
    click.option("--summary", required=True),
    wait,
)
def complete_fallback(unit_id: str, **arguments: Any) -> None:
    """Accept the native implementation that is committed at HEAD."""
    from controller.commands.fallback import complete as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command("status", run_id, click.option("--unit-id"))
def status(unit_id: str | None, **arguments: Any) -> None:
    """What the journal says of the run, or of one unit."""
    from controller.commands.inspect import status as run

    answer(lambda: run(unit_id=unit_id, **arguments), unit_id)


@command("resume", click.option("--run-id"), click.option("--repo"), click.option("--plan-digest"), wait)
def resume(**arguments: Any) -> None:
    """After any crash: bring the run to a state with a legal next step."""
    from controller.commands.resume import resume as run

    answer(run, **arguments)


def main() -> None:
    """Entry point of the `unit-workspace` command."""
    start_up()
    try:
        cli(prog_name="unit-workspace")
    except OSError as error:  # the text of --help or --version that nobody takes
        forget_stdout()
        complain(f"unit-workspace: cannot write the answer: {error.strerror}")
        sys.exit(1)
