"""The limits of a job, from the environment of the caller of `start` (protocol section 12)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

CE_WORK = "ce-work"

IDLE_SECONDS = 240
HARD_SECONDS = 1230
HARD_MARGIN_SECONDS = 30
LOG_MAX_BYTES = 10 * 1024 * 1024
RESULT_MAX_BYTES = 5 * 1024 * 1024
POLL_SECONDS = 2
GRACE_SECONDS = 5


class Supervision(msgspec.Struct, frozen=True):
    """`idle` (None: no idle limit), `hard`, `poll`, `grace` in seconds; `log_max`, `result_max` in bytes.

    `poll` is recorded for readers of `meta.json`; nothing of ours waits for a poll.
    """

    idle: float | None = IDLE_SECONDS
    hard: float = HARD_SECONDS
    log_max: int = LOG_MAX_BYTES
    result_max: int = RESULT_MAX_BYTES
    poll: float = POLL_SECONDS
    grace: float = GRACE_SECONDS

    def __post_init__(self) -> None:
        # JSON as others write it may hold NaN or 1e999.
        if not all(math.isfinite(seconds) for seconds in (self.idle or 0, self.hard, self.poll, self.grace)):
            raise ValueError("limits that are no finite numbers")


def from_environment(environ: Mapping[str, str], skill: str) -> Supervision:
    """The limits for a new job of `skill`; a value that is no number, or negative, is the default."""
    idle: float | None = _number(environ, "CE_PEER_IDLE_SECS", IDLE_SECONDS)
    if not idle:
        # Only a ce-work adapter may be silent for as long as it likes.
        idle = None if skill == CE_WORK else IDLE_SECONDS
    model_hard = _number(environ, "CROSS_MODEL_HARD_SECS", 0)
    hard = _number(environ, "CE_PEER_HARD_SECS", 0) or max(HARD_SECONDS, model_hard + HARD_MARGIN_SECONDS)
    return Supervision(
        idle=idle,
        hard=hard,
        log_max=int(_number(environ, "CE_PEER_LOG_MAX_BYTES", LOG_MAX_BYTES)),
        result_max=result_max(environ),
        poll=_number(environ, "CE_PEER_POLL_SECS", POLL_SECONDS),
        grace=_number(environ, "CE_PEER_GRACE_SECS", GRACE_SECONDS),
    )


def result_max(environ: Mapping[str, str]) -> int:
    """The result cap in bytes."""
    return int(_number(environ, "CE_PEER_RESULT_MAX_BYTES", RESULT_MAX_BYTES))


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(environ.get(name, ""))
    except ValueError:
        return default
    if not math.isfinite(value) or value < 0:
        return default
    return int(value) if value.is_integer() else value
