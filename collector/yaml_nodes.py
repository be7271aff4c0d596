"""From a YAML text that somebody wrote to its nodes: the one way in, whoever reads them.

A few hundred bytes of anchors and merge keys can stand for gigabytes, and one number of a thousand
parts for hours. What a text would be with every alias written out is counted before anything is
made of it. A message never quotes the text: who may name a file for this program to read need not
be who may read it.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import yaml

from collector.errors import BadInput

_MOST_CHARACTERS = 1 << 20  # what a ConfigMap holds
_MOST_VALUES = 100_000
_LONGEST_NUMBER = 200  # or date, or truth: whatever is not a text
_TEXT = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True)
class NamedNode(ABC):
    """One value of a document, under the name that a message calls it by: its key, dotted; empty
    for the document itself. Who reads values decides what they are and what may be said of them."""

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
        """The error to raise about this value, with file and line."""
        name = self.name if self.name.isprintable() else repr(self.name)
        return BadInput(f"{name}: {message}" if name else message, path=self.path, line=self.line)

    def items(self) -> list[Self]:
        """The values of a list that holds at least one."""
        if not self.is_list:
            raise self.unwanted("a list")
        if not self.node.value:
            raise self.refusal("the list is empty, at least one entry is wanted")
        return self.numbered()

    def numbered(self) -> list[Self]:
        """The values of a list, be it empty."""
        places = enumerate(self.node.value)
        return [replace(self, name=f"{self.name}[{at}]", node=node) for at, node in places]

    def named(self, key: str, node: yaml.Node) -> Self:
        """A value of this mapping."""
        return replace(self, name=f"{self.name}.{key}" if self.name else key, node=node)

    def unwanted(self, wanted: str, came: str = "") -> BadInput:
        return self.refusal(f"{wanted} is wanted, {came or self._kind()} came")

    def _kind(self) -> str:
        if self.is_mapping:
            return "a mapping"
        return "a list" if self.is_list else self._scalar_kind()

    @abstractmethod
    def _scalar_kind(self) -> str:
        """What a scalar is, as far as a message may say it."""


def read_node(text: str, path: Path | str) -> yaml.Node:
    """The one document of a text. Raises BadInput, with the line, where it is none, where it is
    empty, and where it stands for more than anybody has to say."""
    if len(text) > _MOST_CHARACTERS:
        raise BadInput(f"not YAML that can be read: over {_MOST_CHARACTERS} characters", path=path)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise BadInput("the file is empty", path=path, line=1)
        _Sizes(path).of(node)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BadInput(f"not YAML: {error.reason}", path=path, line=line) from error
    except yaml.MarkedYAMLError as error:
        raise refusal_of(error, path) from error
    except RecursionError as error:
        raise BadInput("not YAML that can be read: nested too deeply", path=path) from error
    except (ValueError, OverflowError) as error:  # PyYAML's own: \UFFFFFFFF names no character
        raise BadInput("not YAML: an escape is no character", path=path) from error
    return node


def line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def refusal_of(error: yaml.MarkedYAMLError, path: Path | str) -> BadInput:
    """What PyYAML has to say about a text, with the line."""
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    return BadInput(f"not YAML: {_problem(error)}", path=path, line=line)


class _Sizes:
    """How many values nodes stand for, every alias written out; one that holds itself counts once
    more. What merges itself has no end. Too many are refused where the sum comes to them."""

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
            raise self._refusal(node, f"a number of over {_LONGEST_NUMBER} characters")
        return 0

    def _sum(self, sizes: Iterable[tuple[yaml.Node, int]]) -> int:
        """The sum; each size has the node beside it that a message would name. The place of an
        alias is not kept, only that of what it stands for."""
        total = 0
        for place, size in sizes:
            total += size
            if total >= _MOST_VALUES:
                how = (
                    "with every alias written out, it stands" if self._has_aliases else "it stands"
                )
                what = f"{how} for more than {_MOST_VALUES} values"
                raise BadInput(what, path=self._path, line=line_of(place))
        return total

    def _value(self, key: yaml.Node, value: yaml.Node) -> int:
        if key.tag != _MERGE:
            return self.of(value)
        merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
        return sum(self.of(each, merged=True) for each in merged)

    def _refusal(self, node: yaml.Node, what: str) -> BadInput:
        return BadInput(f"not YAML that can be read: {what}", path=self._path, line=line_of(node))


def _problem(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's words up to where they quote the text."""
    if "'\\t'" in (error.problem or ""):
        return "a tab stands where blanks are wanted; indent with blanks"
    parts = (part for part in (error.context, error.problem) if part)
    return ", ".join(
        re.split("['\"]", part)[0].removesuffix(", but found ").strip() for part in parts
    )
