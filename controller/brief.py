"""Advice on a prompt brief's shape: the six headings of seed 004 (section 18 row 25). Pure; never a refusal."""

from __future__ import annotations

import re

HEADINGS = (
    "Request",
    "Goal",
    "Scope",
    "Acceptance and verification",
    "Constraints and exclusions",
    "Units",
)
_NEED_TEXT = ("Goal", "Scope", "Acceptance and verification")
_HEADING = re.compile(r"^\s{0,3}#{1,6}\s+(.*?)\s*#*\s*$|^\*\*(.+?)\*\*:?\s*$")


def warnings(data: bytes) -> list[str]:
    """What a worker would miss: headings that are absent, or empty where they must not be."""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in data.decode("utf-8", "replace").splitlines():
        match = _HEADING.match(line)
        if match:
            name = (match[1] or match[2] or "").strip().rstrip(":").lower()
            current = sections.setdefault(name, [])
        else:
            current.append(line)
    found = []
    for heading in HEADINGS:
        lines = sections.get(heading.lower())
        if lines is None:
            found.append(f"heading missing: {heading}")
        elif heading in _NEED_TEXT and not any(line.strip() for line in lines):
            found.append(f"heading empty: {heading}")
    return found
