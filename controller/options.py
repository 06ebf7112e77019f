"""What the commands of `unit-workspace` share: the group, their options, and how a command is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from controller.frame import PrefixCommand


class _Seconds(click.FloatRange):
    """Seconds in a range; `nan` lies in none, though no comparison says so."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return number


run_id = click.option("--run-id", required=True)
unit_id = click.option("--unit-id", required=True)
attempt_id = click.option("--attempt-id", required=True)
job_id = click.option("--job-id", required=True)
token = click.option("--lock-token", required=True)
wait = click.option(
    "--wait-lock",
    "wait",
    type=_Seconds(0, 60),
    default=10,
    show_default=True,
    help="Seconds to wait for another command that works on the run.",
)
queue = click.option(
    "--wait-lock",
    type=_Seconds(0, 60),
    default=0,
    show_default=True,
    help="Seconds to queue for the integration lock of the branch.",
)
timeout = click.option(
    "--verification-timeout",
    "timeout",
    type=click.IntRange(1, 7 * 24 * 3600),
    default=3600,
    show_default=True,
    help="Seconds after which the verification and every process of it is ended.",
)
argv = click.argument("argv", nargs=-1, type=click.UNPROCESSED)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="unit-workspace")
def cli() -> None:
    """Hands bounded units of coding work to external agent CLIs without losing a byte of your own work."""


def command(name: str, *options: Callable[[Any], Any]) -> Callable[[Callable[..., None]], click.Command]:
    """A command with its options in reading order."""

    def decorate(function: Callable[..., None]) -> click.Command:
        for option in reversed(options):
            function = option(function)
        return cli.command(name, cls=PrefixCommand)(function)

    return decorate
