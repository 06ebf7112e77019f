"""Every refusal that the controller can speak, read from its own source: word, message, expected, remedy.

Made from the code itself, so that `explain` is never out of step with what is refused. A text that is only known
when it happens is a hole, `…`. Texts that reach the refusal through a constant, a parameter, a loop over literals or
another function's return values are followed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
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
_HOLE = "…"
_FOLLOWED = (ast.Constant, ast.Name, ast.IfExp, ast.BoolOp)
_DEPTH = 4
_MOST_TEXTS = 24


class Entry(msgspec.Struct, frozen=True):
    """One refusal: `context` is what the refusing function promises; holes in texts are `…`."""

    word: str
    message: str
    expected: str
    remedy: str
    context: str

    def weight(self) -> int:
        """How many characters of the message are known beforehand."""
        return len(self.message.replace(_HOLE, "").strip())

    def matches(self, text: str) -> bool:
        """Whether this text is this refusal's message, whole."""
        pattern = ".*".join(re.escape(part) for part in self.message.split(_HOLE))
        return self.weight() > 3 and re.fullmatch(pattern, text.strip(), re.IGNORECASE | re.DOTALL) is not None

    def contains(self, text: str) -> bool:
        """Whether this text is a part of this refusal's message, or holds it."""
        part, message = text.strip().lower(), self.message.lower()
        if len(part) > 3 and part in message:
            return True
        known = [re.escape(piece.strip()) for piece in message.split(_HOLE) if len(piece.strip()) > 3]
        return self.weight() > 8 and bool(known) and re.search(".*?".join(known), part, re.DOTALL) is not None


# Spoken by the runner's code, passed on by the controller as they are.
_PASSED_ON = (
    Entry(
        word="UNREADABLE",
        message="not trusted: …",
        expected="a private file (0600) or directory (0700) of the current user, no link",
        remedy="see who changed it; put owner and mode back, or move it away",
        context="What breaks the rule of private state is never read (protocol.md section 4).",
    ),
)


class _Module:
    """One source file: its constants, functions, and who calls them."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.functions: dict[str, ast.FunctionDef] = {}
        self.calls: dict[str, list[tuple[ast.Call, ast.FunctionDef | None]]] = {}
        self.constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name) and isinstance(node.value.value, str)
        }
        self._walk(tree, None)

    def _walk(self, node: ast.AST, inside: ast.FunctionDef | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                self.functions[child.name] = child
                self._walk(child, child)
                continue
            if isinstance(child, ast.Call):
                self.calls.setdefault(_name(child.func), []).append((child, inside))
            self._walk(child, inside)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


class _Scope:
    """Where an expression stands: its function, and what a caller passed to it (parameter to texts)."""

    def __init__(
        self, module: _Module, function: ast.FunctionDef | None, given: Mapping[str, list[str]], depth: int
    ) -> None:
        self.module = module
        self.function = function
        self.given = given
        self.depth = depth

    def texts(self, node: ast.expr | None) -> list[str]:
        """Every text that an expression may have, as far as the source says."""
        return list(dict.fromkeys(self._texts(node)))[:_MOST_TEXTS]

    def _texts(self, node: ast.expr | None) -> list[str]:
        if node is None:
            return [""]
        if isinstance(node, ast.Constant):
            return [node.value] if isinstance(node.value, str) else [_HOLE if node.value is not None else ""]
        if isinstance(node, ast.JoinedStr):
            return self._joined(node)
        if isinstance(node, ast.IfExp):
            return self.texts(node.body) + self.texts(node.orelse)
        if isinstance(node, ast.BoolOp):
            return [text for value in node.values for text in self.texts(value)]
        if isinstance(node, ast.Name):
            return self._of_name(node.id)
        if isinstance(node, ast.Call) and _name(node.func) in self.module.functions and self.depth:
            return self._returned(self.module.functions[_name(node.func)])
        return [_HOLE]

    def _joined(self, node: ast.JoinedStr) -> list[str]:
        texts = [""]
        for part in node.values:
            value = part.value if isinstance(part, ast.FormattedValue) else part
            found = self.texts(value) if isinstance(value, _FOLLOWED) else [_HOLE]
            texts = [text + more for text in texts for more in (found if len(found) <= 8 else [_HOLE])]
        return texts

    def _of_name(self, name: str) -> list[str]:
        if name in self.given:
            return self.given[name]
        if self.function is not None and self.depth:
            found = self._assigned(self.function, name)
            default = _defaults(self.function).get(name)
            if found or default is not None:
                return found or self._deeper().texts(default)
        constant = self.module.constants.get(name)
        return [_HOLE] if constant is None else [constant]

    def _deeper(self) -> _Scope:
        return _Scope(self.module, self.function, self.given, self.depth - 1)

    def _assigned(self, function: ast.FunctionDef, name: str) -> list[str]:
        """Texts of a local variable: assigned, or taken by a loop from literals."""
        found: list[str] = []
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and any(_name(target) == name for target in node.targets):
                found += self._deeper().texts(node.value)
            elif isinstance(node, ast.For) and isinstance(node.target, ast.Tuple):
                places = [_name(target) for target in node.target.elts]
                if name in places:
                    found += self._looped(function, node.iter, places.index(name))
        return [text for text in found if text]

    def _looped(self, function: ast.FunctionDef, source: ast.expr, place: int) -> list[str]:
        if isinstance(source, ast.Name):
            literals = [
                node.value
                for node in ast.walk(function)
                if isinstance(node, ast.Assign | ast.AnnAssign)
                and node.value is not None
                and source.id in [_name(t) for t in (node.targets if isinstance(node, ast.Assign) else [node.target])]
            ]
        else:
            literals = [source]
        rows = [row for literal in literals if isinstance(literal, ast.List | ast.Tuple) for row in literal.elts]
        cells = [row.elts[place] for row in rows if isinstance(row, ast.Tuple) and place < len(row.elts)]
        return [text for cell in cells for text in self._deeper().texts(cell)]

    def _returned(self, function: ast.FunctionDef) -> list[str]:
        inner = _Scope(self.module, function, {}, self.depth - 1)
        values = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
        return [text for value in values for text in inner.texts(value) if text]


def _defaults(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """Parameter to its default value."""
    positional = function.args.args[len(function.args.args) - len(function.args.defaults) :]
    found = {argument.arg: value for argument, value in zip(positional, function.args.defaults, strict=True)}
    for argument, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if value is not None:
            found[argument.arg] = value
    return found


def _callers(module: _Module, function: ast.FunctionDef, depth: int) -> Iterator[Mapping[str, list[str]]]:
    """For every call of a function in its module: parameter to the texts that are passed."""
    names = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
    names += [argument.arg for argument in function.args.kwonlyargs]
    defaults = _defaults(function)
    for call, inside in module.calls.get(function.name, []):
        outer = _Scope(module, inside, {}, depth - 1)
        passed = dict(zip(names, call.args, strict=False))
        passed |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
        values = {name: passed.get(name, defaults.get(name)) for name in names}
        yield {name: [_HOLE] if value is None else outer.texts(value) for name, value in values.items()}


def _parameters(node: ast.expr, function: ast.FunctionDef | None) -> bool:
    """Whether a message is made of the function's own parameters."""
    if function is None:
        return False
    names = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
    return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))


def _entries_of(module: _Module) -> Iterator[Entry]:
    for name, word in _WORDS.items():
        for call, function in module.calls.get(name, []):
            if not call.args:
                continue
            scopes = [_Scope(module, function, {}, _DEPTH)]
            if function is not None and _parameters(call.args[0], function):
                scopes += [_Scope(module, function, given, _DEPTH) for given in _callers(module, function, _DEPTH)]
            for scope in scopes:
                yield from _entries_in(scope, call, word)


def _entries_in(scope: _Scope, call: ast.Call, word: str) -> Iterator[Entry]:
    words = {keyword.arg: keyword.value for keyword in call.keywords}
    function = scope.function
    context = (ast.get_docstring(function) if function is not None else None) or ast.get_docstring(scope.module.tree)
    for message in scope.texts(call.args[0]):
        if message.strip(f"{_HOLE}:;, "):
            yield Entry(
                word=word,
                message=message,
                expected=scope.texts(words.get("expected"))[0],
                remedy=scope.texts(words.get("remedy"))[0],
                context=(context or "").split("\n\n")[0].replace("\n", " "),
            )


def sources() -> Iterable[Path]:
    """The source files of the installed controller."""
    return sorted(Path(__file__).parent.rglob("*.py"))


def entries() -> list[Entry]:
    """Every refusal of the installed controller, each once."""
    found = {}
    for path in sources():
        for entry in _entries_of(_Module(ast.parse(path.read_text(encoding="utf-8")))):
            found[(entry.word, entry.message, entry.remedy)] = entry
    return [*found.values(), *_PASSED_ON]
