"""Every refusal that the controller can speak, read from its own source: word, message, expected, remedy. Pure.

Made from the code itself, so that `explain` is never out of step with what is refused.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

_WORDS = {
    "Refused": "REFUSED",
    "Blocked": "BLOCKED",
    "Ambiguous": "AMBIGUOUS",
    "NotFound": "NOT_FOUND",
    "Interrupted": "INTERRUPTED",
    "Unreadable": "UNREADABLE",
    "WorkerBlocked": "BLOCKED",
}


class Entry(msgspec.Struct, frozen=True):
    """One place that refuses: `context` is what the refusing function promises; holes in texts are `…`."""

    word: str
    message: str
    expected: str
    remedy: str
    context: str

    def matches(self, text: str) -> bool:
        """Whether this text (a line of standard error, or a part of it) is this refusal."""
        parts = [re.escape(part.strip()) for part in self.message.split("…") if len(part.strip()) > 3]
        return bool(parts) and re.search(".*?".join(parts), text, re.IGNORECASE | re.DOTALL) is not None


def _text(node: ast.expr | None) -> str:
    """A string expression with `…` for what is only known when it happens."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return "…" if node is not None else ""


def _entries_of(tree: ast.Module) -> Iterator[Entry]:
    stack: list[tuple[ast.AST, str]] = [(tree, ast.get_docstring(tree) or "")]
    while stack:
        node, context = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            context = ast.get_docstring(node) or context
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _WORDS and node.args:
            words = {keyword.arg: keyword.value for keyword in node.keywords}
            message = _text(node.args[0])
            if message.strip("… "):
                yield Entry(
                    word=_WORDS[node.func.id],
                    message=message,
                    expected=_text(words.get("expected")),
                    remedy=_text(words.get("remedy")),
                    context=context.split("\n\n")[0].replace("\n", " "),
                )
        stack += [(child, context) for child in ast.iter_child_nodes(node)]


def entries() -> list[Entry]:
    """Every refusal of the installed controller."""
    package = Path(__file__).parent
    found = []
    for path in sorted(package.rglob("*.py")):
        found += list(_entries_of(ast.parse(path.read_text(encoding="utf-8"))))
    return found
