"""The commands of `unit-workspace` for people and upkeep."""

from __future__ import annotations

from typing import Any

import click

from controller.frame import PrefixCommand, answer
from controller.options import cli, command, run_id


@command("runs")
def runs() -> None:
    """Every run under the runs root."""
    from controller.commands.inspect import runs as run

    answer(run)


@command("doctor", click.option("--fix", is_flag=True, help="Mend what is provably ours."))
def doctor(**arguments: Any) -> None:
    """Check runs, locks, worktrees, refs and processes; say what each finding means."""
    from controller.commands.doctor import doctor as run

    answer(run, **arguments)


@command("explain", click.argument("text", nargs=-1))
def explain(text: tuple[str, ...]) -> None:
    """What a word, a state or the text of a refusal means, and what to do; without TEXT, every word and state."""
    from controller.commands.explain import explain as run
    from controller.commands.explain import vocabulary

    if text:
        answer(run, text=" ".join(text))
    else:
        answer(vocabulary)


@command(
    "gc",
    click.option("--older-than-days", type=click.FloatRange(0), default=30, show_default=True),
    click.option("--yes", is_flag=True, help="Remove them; without it, only say what would go."),
)
def gc(**arguments: Any) -> None:
    """Remove finished runs that are old enough."""
    from controller.commands.gc import gc as run

    answer(run, **arguments)


@command("install-scripts", click.argument("directory", type=click.Path()), click.option("--force", is_flag=True))
def install_scripts(directory: str, force: bool) -> None:
    """Write the three drop-in entry points into the scripts folder of a ce-work skill."""
    import sys
    from pathlib import Path

    from controller.answer import Answer
    from controller.install_scripts import install

    def run() -> Answer:
        written = install(Path(directory), interpreter=sys.executable, force=force)
        return Answer("INSTALLED", {"scripts": [str(path) for path in written], "interpreter": sys.executable})

    answer(run)


@cli.group("journal")
def journal() -> None:
    """Verify, show or export a run's journal."""


@journal.command("verify", cls=PrefixCommand)
@run_id
def journal_verify(run_id: str) -> None:
    """Check every record's shape, hash, chain and order."""
    from controller.answer import Answer
    from controller.commands.journal import verify
    from controller.run_root import JOURNAL, find_run

    answer(lambda: Answer("JOURNAL_OK", verify(find_run(run_id) / JOURNAL)))


@journal.command("export", cls=PrefixCommand)
@run_id
def journal_export(run_id: str) -> None:
    """The records as one JSON array."""
    from controller.commands.journal import export
    from controller.frame import stream
    from controller.run_root import JOURNAL, find_run

    stream(lambda: export(find_run(run_id) / JOURNAL))


@journal.command("show", cls=PrefixCommand)
@run_id
def journal_show(run_id: str) -> None:
    """The run's story, for people."""
    from controller.commands.journal import show
    from controller.frame import stream
    from controller.run_root import JOURNAL, find_run

    def run() -> list[bytes]:
        from rich.console import Console

        show(find_run(run_id) / JOURNAL, Console())
        return []

    stream(run)


@cli.group("task")
def task() -> None:
    """Read a task file: who would do it, why, and the ready command lines."""


@task.command("show", cls=PrefixCommand)
@click.argument("file", type=click.Path())
@click.option("--run-id", "run", help="The run that `prepare` shall belong to.")
@click.option("--repo", type=click.Path(), help="The repository whose GOAL.md holds the fleet.")
def task_show(file: str, run: str | None, repo: str | None) -> None:
    """The resolved worker and why, the scope, and the `init` and `prepare` lines."""
    from controller.commands.task import show

    answer(lambda: show(file=file, run_id=run, repo=repo))
