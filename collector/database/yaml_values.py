"""A YAML file of a tree as values that know their name and line, for checks that point there.

The file need not be ours: keys are not limited, merge keys (`<<`) and aliases are followed as a
loader follows them. Nothing but what YAML itself knows is constructed.
"""

from collections.abc import Sequence
from pathlib import Path

import yaml

from collector.errors import BadInput
from collector.yaml_nodes import NamedNode, line_of, read_node, refusal_of

# A message says of which kind a value is, never the value: who may name a file for this program to
# read need not be who may read it. Keys are named, as columns of a CSV are.
_KINDS = {
    "null": "nothing",
    "str": "text",
    "int": "a number",
    "float": "a number",
    "bool": "a boolean",
}


class Value(NamedNode):
    """One value of a file, as YAML reads it."""

    __slots__ = ()

    def fields(self) -> dict[str, "Value"]:
        """The values of a mapping by key, those that `<<` brought among them."""
        if not self.is_mapping:
            raise self.unwanted("a mapping")
        # Of what `<<` brought and what stands here itself, the latter comes last and counts.
        return {key.value: self.named(key.value, value) for key, value in self.node.value}

    def children(self) -> list[tuple[str, "Value"]]:
        """What stands directly below, with its key; empty in a list, nothing below a scalar."""
        if self.is_mapping:
            return list(self.fields().items())
        return [("", value) for value in self.numbered()] if self.is_list else []

    def text(self) -> str:
        """A text as YAML reads it: not a number, not a yes."""
        if not self.is_a("str"):
            raise self.unwanted("text")
        return str(self.node.value)

    def choice(self, allowed: Sequence[str]) -> str:
        text = self.text()
        if text not in allowed:
            raise self.refusal(f"expected one of {', '.join(allowed)}, got other text")
        return text

    def flag(self) -> bool:
        if not self.is_a("bool"):
            raise self.unwanted("true or false")
        return yaml.SafeLoader.bool_values[str(self.node.value).lower()]

    def count(self) -> int:
        text = str(self.node.value)
        if not (self.is_a("int") and text.isdecimal() and int(text) > 0):
            raise self.unwanted("an integer of at least 1")
        return int(text)

    def is_a(self, kind: str) -> bool:
        """Whether this is a scalar that YAML takes for `str`, `bool`, `int`, `null` …"""
        return isinstance(self.node, yaml.ScalarNode) and self.node.tag.endswith(f",2002:{kind}")

    def _scalar_kind(self) -> str:
        return _KINDS.get(self.node.tag.rpartition(":")[2], "another value")


def read_values(text: str, path: Path | str) -> Value:
    """The one document of a text. Raises BadInput, with the line, where a loader would refuse
    it, and where a key occurs twice: a loader would drop one of them."""
    node = read_node(text, path)
    _check_keys(node, path)
    try:
        # Refuses tags and dates that do not load, and puts what `<<` brings where it belongs.
        yaml.constructor.SafeConstructor().construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise refusal_of(error, path) from error
    except (ValueError, LookupError, AttributeError) as error:
        # PyYAML's own, for a scalar that is not what its tag says, as 2026-02-30 and `!!bool 7`.
        raise BadInput("cannot load a value: it does not match its YAML tag", path=path) from error
    except RecursionError as error:
        raise BadInput("cannot read the YAML: nested too deeply", path=path) from error
    return Value("", node, path)


def _check_keys(document: yaml.Node, path: Path | str) -> None:
    waiting, seen = [document], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:  # by an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            _check_keys_of(node, path)
            waiting.extend(value for _, value in node.value)


def _check_keys_of(mapping: yaml.MappingNode, path: Path | str) -> None:
    lines: dict[str, int] = {}
    for node, _ in mapping.value:
        key = Value("", node, path)
        if not isinstance(node, yaml.ScalarNode):
            raise key.refusal("expected a scalar key")
        if node.value in lines:
            raise key.refusal(f"duplicate key; first defined in line {lines[node.value]}")
        lines[node.value] = line_of(node)
