"""When a CLI says that it may be tried again, in seconds from now; at most a day.

A public launcher took 432,000 seconds at its word and stood still for five days (launcher section 15 W23).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

MAX_RETRY_AFTER_SECONDS = 24 * 3600


def retry_after(message: str, now: datetime) -> int | None:
    """Seconds until the CLI says it may be tried again, at most a day; None when it does not say.

    `now` is local time; a clock time without a zone is taken for local, too.
    """
    for seconds in (_header(message), _duration(message), _epoch(message, now), _clock(message, now)):
        if seconds is not None:
            return capped(seconds)
    return None


def seconds_until(unix_time: int, now: datetime) -> int:
    """Seconds from `now` until `unix_time` (seconds), at least 0 and at most a day."""
    return capped(int(unix_time - now.timestamp()))


def capped(seconds: int) -> int:
    """`seconds`, at least 0 and at most a day."""
    return min(max(seconds, 0), MAX_RETRY_AFTER_SECONDS)


_HEADER = re.compile(
    r"\b(?:retry[-_ ]after(?:[-_ ]seconds)?|resets_in_seconds)\"?\s*[:=]?\s*\"?(\d{1,9})\b", re.IGNORECASE
)
_DURATION = re.compile(
    r"\b(?:try again|retry|resets?|reset) (?:in|after) ((?:\d+(?:\.\d+)?\s*[a-z]+[, ]*(?:and )?){1,4})",
    re.IGNORECASE,
)
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT_WORDS = {"mi": "m", "se": "s", "ho": "h", "hr": "h", "da": "d"}
_CLOCK = re.compile(
    r"\b(?:try again at|resets?(?: at)?) "
    r"(?:(?P<month>[a-z]{3})[a-z]* (?P<day>\d{1,2})(?:st|nd|rd|th)?(?:, (?P<year>\d{4}))?,? (?:at )?)?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d\d))? ?(?P<half>[ap])\.?m\b"
    r"(?: \((?P<zone>[A-Za-z_]+(?:/[A-Za-z_+-]+)+|UTC)\))?",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"\blimit reached\|(\d{10})\b", re.IGNORECASE)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def _header(message: str) -> int | None:
    match = _HEADER.search(message)
    return int(match[1]) if match else None


def _epoch(message: str, now: datetime) -> int | None:
    match = _EPOCH.search(message)
    return seconds_until(int(match[1]), now) if match else None


def _duration(message: str) -> int | None:
    match = _DURATION.search(message)
    if match is None:
        return None
    seconds = 0.0
    for number, word in _AMOUNT.findall(match[1]):
        unit = word.lower()
        unit = unit if unit in _UNITS else _UNIT_WORDS.get(unit[:2], "")
        if unit not in _UNITS:
            break
        seconds += float(number[:12]) * _UNITS[unit]
    return -int(-seconds // 1) if seconds else None


def _clock(message: str, now: datetime) -> int | None:
    match = _CLOCK.search(message)
    if match is None:
        return None
    if match["zone"]:
        local = _in_zone(now, match["zone"])
        if local is None:
            return None
        now = local
    hour = int(match["hour"]) % 12 + (12 if match["half"].lower() == "p" else 0)
    try:
        then = now.replace(hour=hour, minute=int(match["minute"] or 0), second=0, microsecond=0)
        if match["month"]:
            month = _MONTHS.index(match["month"].lower()) + 1
            then = then.replace(year=int(match["year"] or now.year), month=month, day=int(match["day"]))
        elif then <= now:
            then += timedelta(days=1)
    except ValueError:
        return None
    return int((then - now).total_seconds())


def _in_zone(now: datetime, name: str) -> datetime | None:
    """Local time `now` as a clock in zone `name` shows it, or None when this machine does not know the zone."""
    if name.upper() == "UTC":
        return now.astimezone(UTC)
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return now.astimezone(ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
