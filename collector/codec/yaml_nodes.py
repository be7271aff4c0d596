"""Reader of the nodes of a YAML text, which every reader of YAML in this project uses.

A few hundred bytes of anchors and merge keys can expand to gigabytes, and one number of a thousand
parts can take hours to convert. The expanded size is computed before a value is built. A message
has the form `<file>:<line>: <key>: expected X, got Y` and never quotes the text: a user who may
name a file for this program to read may not be allowed to read it.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import yaml

from collector.codec.errors import BadInput

_MOST_CHARACTERS = 1 << 20  # the limit of a ConfigMap
_MOST_VALUES = 100_000
_LONGEST_NUMBER = 200  # of a number, date, boolean or any other scalar that is not text
_TEXT = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True)
class NamedNode(ABC):
    """One value of a document, with its name in messages.

    The name is the dotted key, empty for the document itself. A subclass decides the type of a
    value and what a message may quote of it."""

    name: str
    node: yaml.Node
    path: Path | str

    @property
    def is_list(self) -> bool:
        return isinstance(self.node, yaml.SequenceNode)

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    @property
    def line(self) -> int:
        return line_of(self.node)

    def refusal(self, message: str) -> BadInput:
        """Return the error about this value, with file and line."""
        name = self.name if self.name.isprintable() else repr(self.name)
        return BadInput(f"{name}: {message}" if name else message, path=self.path, line=self.line)

    def items(self) -> list[Self]:
        """Return the values of a list that is not empty."""
        if not self.is_list:
            raise self.mismatch("a list")
        if not self.node.value:
            raise self.refusal("expected a list of at least one entry, got an empty list")
        return self.numbered()

    def numbered(self) -> list[Self]:
        """Return the values of a list, which may be empty."""
        places = enumerate(self.node.value)
        return [replace(self, name=f"{self.name}[{at}]", node=node) for at, node in places]

    def named(self, key: str, node: yaml.Node) -> Self:
        """Return a value of this mapping."""
        return replace(self, name=f"{self.name}.{key}" if self.name else key, node=node)

    def mismatch(self, expected: str, got: str = "") -> BadInput:
        """Return the error `expected X, got Y`; without `got` it names the kind of the value."""
        return self.refusal(f"expected {expected}, got {got or self._kind()}")

    def _kind(self) -> str:
        if self.is_mapping:
            return "a mapping"
        return "a list" if self.is_list else self._scalar_kind()

    @abstractmethod
    def _scalar_kind(self) -> str:
        """Return the kind of a scalar, or its text if a message may quote it."""


def read_node(text: str, path: Path | str) -> yaml.Node:
    """Return the only document of a text.

    Raises BadInput, with the line, if the text is not one YAML document, is empty, or expands to
    too many values."""
    if len(text) > _MOST_CHARACTERS:
        raise BadInput(
            f"cannot read YAML: expected at most {_MOST_CHARACTERS} characters, got {len(text)}",
            path=path,
        )
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise BadInput("expected a YAML document, got an empty file", path=path, line=1)
        _AliasCounter(path).of(node)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BadInput(f"invalid YAML: {error.reason}", path=path, line=line) from error
    except yaml.MarkedYAMLError as error:
        raise refusal_of(error, path) from error
    except RecursionError as error:
        raise BadInput("cannot read YAML: nested too deeply", path=path) from error
    except (ValueError, OverflowError) as error:  # of PyYAML: \UFFFFFFFF is not a character
        raise BadInput("invalid YAML: an escape is not a character", path=path) from error
    return node


def line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def refusal_of(error: yaml.MarkedYAMLError, path: Path | str) -> BadInput:
    """Return PyYAML's error about a text, with the line."""
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    return BadInput(f"invalid YAML: {_problem(error)}", path=path, line=line)


class _AliasCounter:
    """Counter of the values of nodes with every alias expanded.

    A node that contains itself counts as one more value. A mapping that merges itself is refused.
    The error about too many values names the line at which the sum exceeds the limit."""

    def __init__(self, path: Path | str):
        self._path = path
        self._known: dict[int, int] = {}
        self._open: set[int] = set()
        self._has_aliases = False

    def of(self, node: yaml.Node, *, merged: bool = False) -> int:
        known = self._known.get(id(node))
        self._has_aliases |= known is not None or id(node) in self._open
        if known is not None:
            return known
        if id(node) in self._open:
            if merged:
                raise self._refusal(node, "a mapping merges itself")
            return 1
        self._open.add(id(node))
        self._known[id(node)] = size = 1 + self._below(node)
        self._open.remove(id(node))
        return size

    def _below(self, node: yaml.Node) -> int:
        if isinstance(node, yaml.SequenceNode):
            return self._sum((node, self.of(value)) for value in node.value)
        if isinstance(node, yaml.MappingNode):
            sizes = ((key, self.of(key) + self._value(key, value)) for key, value in node.value)
            return self._sum(sizes)
        if node.tag != _TEXT and len(node.value) > _LONGEST_NUMBER:
            raise self._refusal(
                node,
                f"expected a number of at most {_LONGEST_NUMBER} characters, got {len(node.value)}",
            )
        return 0

    def _sum(self, sizes: Iterable[tuple[yaml.Node, int]]) -> int:
        """Return the sum of sizes, each given with the node that a message names.

        PyYAML does not record the position of an alias, only that of the node it refers to."""
        total = 0
        for place, size in sizes:
            total += size
            if total >= _MOST_VALUES:
                how = " after every alias is expanded" if self._has_aliases else ""
                raise self._refusal(place, f"expected at most {_MOST_VALUES} values{how}, got more")
        return total

    def _value(self, key: yaml.Node, value: yaml.Node) -> int:
        if key.tag != _MERGE:
            return self.of(value)
        merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
        return sum(self.of(each, merged=True) for each in merged)

    def _refusal(self, node: yaml.Node, what: str) -> BadInput:
        return BadInput(f"cannot read YAML: {what}", path=self._path, line=line_of(node))


def _problem(error: yaml.MarkedYAMLError) -> str:
    """Return PyYAML's message up to the part that quotes the text."""
    if "'\\t'" in (error.problem or ""):
        return "expected spaces, got a tab; indent with spaces"
    parts = (part for part in (error.context, error.problem) if part)
    return ", ".join(
        re.split("['\"]", part)[0].removesuffix(", but found ").strip() for part in parts
    )
