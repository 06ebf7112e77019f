"""A refusal that says what was expected, what was found and what to do now, for people and for the controller."""

from __future__ import annotations

from collections.abc import Iterable

from adapters.errors import AdapterError


class Refusal(AdapterError):
    """What was asked for cannot be resolved as written. `line` is the 1-based line of the file at fault, if any."""

    def __init__(
        self, message: str, *, expected: str = "", found: str = "", remedy: str = "", line: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected
        self.found = found
        self.remedy = remedy
        self.line = line

    def __str__(self) -> str:
        parts = (("expected", self.expected), ("found", self.found), ("to do:", self.remedy))
        return "; ".join([self.message, *(f"{name} {value}" for name, value in parts if value)])

    def document(self) -> dict[str, object]:
        """The same as JSON values; what is not known is absent."""
        known = {"expected": self.expected, "found": self.found, "remedy": self.remedy, "line": self.line}
        return {"message": self.message, **{name: value for name, value in known.items() if value}}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was most likely meant to be, or None. Letter case does not count."""
    import difflib

    names = {candidate.casefold(): candidate for candidate in known}
    found = difflib.get_close_matches(name.casefold(), list(names), n=1, cutoff=0.6)
    return names[found[0]] if found else None


def unknown(what: str, name: str, known: Iterable[str], *, line: int | None = None) -> Refusal:
    """The refusal of a name that is none of `known`, with the nearest of them."""
    names = list(known)
    near = nearest(name, names)
    return Refusal(
        f"unknown {what} {name[:80]!r}",
        expected=f"one of {', '.join(names)}",
        found=repr(name[:80]),
        remedy=f"did you mean {near!r}?" if near else f"use one of {', '.join(names)}",
        line=line,
    )


def quoted(text: str) -> str:
    """`text`, cut to a length that fits a message, in quotes."""
    return repr(text if len(text) <= 80 else text[:77] + "...")
