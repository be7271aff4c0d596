"""The expression language of shape patterns.

It has integers, names, `+ - * // %`, comparisons, `and or not`, and the functions min, max, align
and ceil_div. Nothing else can be called, so a text from a user can only compute numbers.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from collector.codec.errors import BadInput
from collector.model.case import Slot
from collector.model.vocabulary import FRACTAL_NZ, Dtype, dtype_of

_Function = Callable[[Mapping[str, int]], int]
_LONGEST = 200  # characters
_LARGEST = 1 << 62
_OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.AST], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def ceil_div(number: int, by: int) -> int:
    """Return the number of parts of size `by` that hold `number` things."""
    return -(-number // by)


def align(number: int, to: int) -> int:
    """Return the next multiple of `to` that is not smaller than `number`."""
    return ceil_div(number, to) * to


FUNCTIONS: dict[str, Callable[..., int]] = {
    "min": min,
    "max": max,
    "align": align,
    "ceil_div": ceil_div,
}


@dataclass(frozen=True, slots=True)
class Expression:
    """A text that is known to be an expression of the language."""

    text: str

    @property
    def names(self) -> frozenset[str]:
        """The names whose numbers it uses."""
        return _names(self.text)

    def value(self, names: Mapping[str, int]) -> int:
        """Return its number with these names; truth is 1 or 0.

        Raises BadInput for an unknown name, a division by zero, and a number larger than any
        tensor."""
        try:
            found = self.compute(names)
        except (ZeroDivisionError, TypeError) as error:
            raise BadInput(f"{self.text!r}: {error}") from error
        if abs(found) > _LARGEST:
            raise BadInput(f"{self.text!r}: the number is larger than any tensor")
        return int(found)

    def compute(self, names: Mapping[str, int]) -> int:
        """Return the number with names that count as integers do, such as sizes of many cases."""
        return _function(self.text)(names)


def parse_expression(text: str) -> Expression:
    """Return the expression of a text. Raises BadInput for syntax outside the language."""
    _check(_parsed(text), text)
    return Expression(text)


@lru_cache(maxsize=4096)
def dims_of(text: str) -> tuple[Expression, ...]:
    """Return the expressions between the commas of a text that are outside parentheses."""
    return tuple(parse_expression(part) for part in split_outside(text, ",") if part.strip())


def split_outside(text: str, separator: str) -> list[str]:
    """Return the parts of a text between separators that are outside parentheses and brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "([") - (sign in ")]")
        if sign == separator and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


@lru_cache(maxsize=4096)
def _names(text: str) -> frozenset[str]:
    used = (one.id for one in ast.walk(_parsed(text)) if isinstance(one, ast.Name))
    return frozenset(used) - frozenset(FUNCTIONS)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise BadInput(f"expected an expression of at most {_LONGEST} characters, got {len(text)}")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadInput(f"invalid expression {text!r}") from error


def _check(node: ast.expr, text: str) -> None:
    operators = (*_OPERATORS, *_COMPARISONS, ast.And, ast.Or, ast.Not, ast.USub)
    for one in ast.walk(node):
        match one:
            case ast.Constant():
                known = type(one.value) is int
            case ast.Call(func=ast.Name(id=name), args=[_, *_], keywords=[]):
                known = name in FUNCTIONS
            case ast.Name() | ast.Load() | ast.BinOp() | ast.Compare() | ast.BoolOp():
                known = True
            case _:
                known = isinstance(one, (ast.UnaryOp, *operators))
        if not known:
            raise BadInput(
                f"{text!r}: expected only integers, names, + - * // %, comparisons, and, or, not, "
                f"{', '.join(FUNCTIONS)}"
            )


@lru_cache(maxsize=4096)
def _function(text: str) -> _Function:
    return _compiled(_parsed(text))


def _compiled(node: ast.expr) -> _Function:
    match node:
        case ast.Constant(value=int(number)):
            return lambda names: number
        case ast.Name(id=name):
            return partial(_number_of, name)
        case ast.BinOp(left=left, op=op, right=right):
            operation, first, second = _OPERATORS[type(op)], _compiled(left), _compiled(right)
            return lambda names: operation(first(names), second(names))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            value = _compiled(operand)
            return lambda names: int(not value(names))
        case ast.UnaryOp(operand=operand):
            value = _compiled(operand)
            return lambda names: -value(names)
        case ast.BoolOp(op=op, values=values):
            parts = [_compiled(value) for value in values]
            if isinstance(op, ast.And):
                return lambda names: int(all(part(names) for part in parts))
            return lambda names: int(any(part(names) for part in parts))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            compares, first, second = _COMPARISONS[type(op)], _compiled(left), _compiled(right)
            return lambda names: int(compares(first(names), second(names)))
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = zip((left, *others), ops, others, strict=False)
            pairs = [ast.Compare(low, [op], [high]) for low, op, high in sides]
            return _compiled(ast.BoolOp(ast.And(), list[ast.expr](pairs)))
        case ast.Call(func=ast.Name(id=name), args=args):
            function, parts = FUNCTIONS[name], [_compiled(argument) for argument in args]
            return lambda names: int(function(*(part(names) for part in parts)))
    raise BadInput("expected an expression")


def _number_of(name: str, names: Mapping[str, int]) -> int:
    if name not in names:
        raise BadInput(f"unknown name {name!r}; expected one of {', '.join(sorted(names))}")
    return names[name]


# FRACTAL_NZ: a matrix in blocks, as a row of a profile records it.

_ROWS, _WIDTH_BITS = 16, 256


def block_of(dtype: Dtype) -> tuple[int, int]:
    """Return the rows and columns of a block."""
    return _ROWS, _WIDTH_BITS // dtype.item_bits


def in_blocks(dtype: str, shape: tuple[int, ...]) -> Slot:
    """Return a matrix (.., R, C) of a known dtype in blocks.

    The shape is (.., C / 32 bytes, R / 16, 16, 32 bytes), each rounded up to whole blocks."""
    known = dtype_of(dtype)
    assert known is not None, dtype
    *batch, rows, columns = shape
    height, width = block_of(known)
    blocks = (ceil_div(columns, width), ceil_div(rows, height), height, width)
    return Slot((*batch, *blocks), dtype, FRACTAL_NZ)
