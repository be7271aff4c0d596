"""Whether a call fits a schema as PyTorch writes it, read as text without torch."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_NAME = re.compile(r"(?:\w+::)?(\w+)(?:\.\w+)?\(")
_PARAMETER = re.compile(r"(?P<type>.+?)\s*(?<![\w.])(?P<name>\w+)\s*(?:=(?P<default>.+))?")


@dataclass(frozen=True, slots=True)
class Passed:
    """The arguments of one call: whether each is None, those by place and those by name."""

    by_place: tuple[bool, ...]
    by_name: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a schema. An optional one accepts None; one with a default may be omitted."""

    name: str
    is_optional: bool
    has_default: bool
    by_name_only: bool


@dataclass(frozen=True, slots=True)
class Schema:
    """The name of an operator, without its overload, and its arguments. With `is_reported` false
    only the name is known, and any arguments are accepted. `is_of_python` is true of functions."""

    name: str
    parameters: tuple[Parameter, ...]
    is_reported: bool = True
    is_of_python: bool = False


def parse_schema(text: str) -> Schema:
    """Parse `npu_x(Tensor a, *, int b=1) -> Tensor`. Raises ValueError for other text."""
    found = _NAME.match(text)
    end = _closing(text, found.end()) if found else None
    if found is None or end is None or not text[end + 1 :].lstrip().startswith("->"):
        raise ValueError(f"expected a schema, got {text!r}")
    if text[found.end() : end].strip() == "...":
        return Schema(found[1], (), is_reported=False)
    by_name_only, parameters = False, []
    for piece in _pieces(text[found.end() : end]):
        if piece == "*":
            by_name_only = True
            continue
        parsed = _PARAMETER.fullmatch(piece)
        if parsed is None:
            raise ValueError(f"expected an argument, got {piece!r} in {text!r}")
        parameters.append(
            Parameter(
                parsed["name"],
                parsed["type"].strip().endswith("?"),
                parsed["default"] is not None,
                by_name_only,
            )
        )
    return Schema(found[1], tuple(parameters), is_of_python=text.endswith("-> Any"))


def misfit(passed: Passed, schemas: Iterable[Schema]) -> str:
    """Return why a call fits none of an operator's overloads; empty if it fits one."""
    reasons = [_misfit(passed, schema) for schema in schemas]
    return "" if not reasons or "" in reasons else min(reasons, key=len)


def _misfit(passed: Passed, schema: Schema) -> str:
    if not schema.is_reported:
        return ""
    places = [p for p in schema.parameters if not p.by_name_only]
    if len(passed.by_place) > len(places):
        return f"{len(passed.by_place)} arguments by place, it takes {len(places)}"
    known = {p.name: p for p in schema.parameters}
    if strange := [name for name, _ in passed.by_name if name not in known]:
        return f"no argument {', '.join(strange)}"
    placed = list(zip(places, passed.by_place, strict=False))
    given = [*placed, *((known[name], is_none) for name, is_none in passed.by_name)]
    names = [p.name for p, _ in given]
    if twice := [name for name in names if names.count(name) > 1]:
        return f"{twice[0]} twice"
    if wanting := [p.name for p in schema.parameters if not p.has_default and p.name not in names]:
        return f"it wants {', '.join(wanting)}"
    no_value = [p.name for p, is_none in given if is_none and not p.is_optional]
    return f"{no_value[0]} is None, and it wants a value" if no_value else ""


def _closing(text: str, start: int) -> int | None:
    """Return the position of the closing bracket whose contents begin at `start`."""
    depth = 1
    for place, letter in enumerate(text[start:], start):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place
    return None


def _pieces(text: str) -> list[str]:
    """Split the arguments at commas outside of brackets and quotes."""
    pieces, depth, quote = [""], 0, ""
    for letter in text:
        if letter == "," and depth == 0 and not quote:
            pieces.append("")
            continue
        if letter in "\"'":
            quote = "" if quote == letter else quote or letter
        depth += (letter in "([") - (letter in ")]")
        pieces[-1] += letter
    return [piece.strip() for piece in pieces if piece.strip()]
