"""The faults that can be planted in a module: their positions, and the replaced texts."""

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

KINDS = ("comparison", "boundary", "arithmetic", "constant", "deleted", "swapped")

_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
_LOGGERS = ("_LOG", "_log", "log", "logger", "logging")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted fault: the text at a position of a file, and its replacement."""

    path: str
    start: int
    end: int
    line: int
    kind: str
    old: str
    new: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line} ({self.start}) {self.kind}: {self.old} -> {self.new}"

    def applied(self, source: bytes) -> bytes:
        """Return the source with the fault; ValueError if the text is not there."""
        if source[self.start : self.end] != self.old.encode():
            raise ValueError(
                f"{self.path}:{self.line}: expected {self.old!r}, the file has changed"
            )
        return source[: self.start] + self.new.encode() + source[self.end :]


def draw(root: Path, folders: Sequence[str], *, seed: int, count: int) -> list[Mutant]:
    """Return `count` faults, as many of each kind as there are, chosen by the seed alone."""
    generator = random.Random(seed)
    of_kind: dict[str, list[Mutant]] = {kind: [] for kind in KINDS}
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            name = str(path.relative_to(root))
            if name.startswith("collector/ops/catalog/"):
                continue
            for mutant in faults_of(name, path.read_text()):
                of_kind[mutant.kind].append(mutant)
    for found in of_kind.values():
        generator.shuffle(found)
    drawn: list[Mutant] = []
    while len(drawn) < count and any(of_kind.values()):
        for kind in KINDS:
            if of_kind[kind] and len(drawn) < count:
                drawn.append(of_kind[kind].pop())
    return drawn


def faults_of(path: str, text: str) -> Iterator[Mutant]:
    """Yield every fault that can be planted in a module."""
    lines = [0]
    for line in text.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    source = text.encode()
    for node, kind, replaced in _replacements(ast.parse(text)):
        start = lines[node.lineno - 1] + node.col_offset
        end = lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[operator]
        old = source[start:end].decode()
        new = ast.unparse(replaced)
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant):
            new = f"({new})"
        yield Mutant(path, start, end, node.lineno, kind, old, new)


def _replacements(tree: ast.AST) -> Iterator[tuple[ast.stmt | ast.expr, str, ast.AST]]:
    for node in _code(tree):
        match node:
            case ast.Compare(left, [operator], comparators):
                for kind, table in (("comparison", _NEGATED), ("boundary", _BOUNDARY)):
                    if type(operator) in table:
                        other = table[type(operator)]()
                        yield node, kind, ast.Compare(left, [other], comparators)
            case ast.BinOp(left, operator, right) if not _is_text(left) and not _is_text(right):
                if type(operator) in _ARITHMETIC:
                    yield node, "arithmetic", ast.BinOp(left, _ARITHMETIC[type(operator)](), right)
            case ast.Constant(bool() as value):
                yield node, "constant", ast.Constant(not value)
            case ast.Constant(int() as number):
                yield node, "constant", ast.Constant(number + 1)
            case ast.Constant(float() as number):
                yield node, "constant", ast.Constant(number * 2 or 1.0)
            case ast.Expr(ast.Call(function)) if not _logs(function):
                yield node, "deleted", ast.Pass()
            case ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break():
                yield node, "deleted", ast.Pass()
            case ast.Call(function, [first, second, *rest], keywords) if not (
                isinstance(first, ast.Starred)
                or isinstance(second, ast.Starred)
                or _logs(function)
                or ast.dump(first) == ast.dump(second)
            ):
                yield node, "swapped", ast.Call(function, [second, first, *rest], keywords)


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run: no annotations, decorators' names or texts with fields.

    Nodes inside an f-string have no true positions before Python 3.12.
    """
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "type_params", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            yield child
            yield from _code(child)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _logs(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id in _LOGGERS
    )
