"""A YAML document with the line of every value, so that errors name the location of a mistake.

The schema decides the type of a value, not YAML: a version `2.10` stays `2.10` and does not become
the number 2.1. Nothing in a document is constructed or executed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import yaml

from collector.codec.errors import BadInput
from collector.codec.numbers import integer_of, parse_number, percentage_of
from collector.codec.text import did_you_mean
from collector.codec.yaml_nodes import NamedNode, read_node

Value = TypeVar("Value")


class Entry(NamedNode):
    """One value of a user's YAML document; error messages quote it."""

    __slots__ = ()

    def text(self) -> str:
        """Return a scalar exactly as it is written, without its quotes."""
        return self._scalar("a text")

    def integer(self, least: int) -> int:
        return self._number(
            f"an integer of at least {least}", integer_of, lambda value: value >= least
        )

    def positive(self) -> float:
        return self._number("a number above 0", parse_number, lambda x: x > 0)

    def share(self) -> float:
        return self._number("a number from 0 to 1", parse_number, lambda x: 0 <= x <= 1)

    def percentage(self) -> float:
        """Return a share above 0 and below 1, written as `1%` or `0.01`."""

        expected = "a share between 0 and 1, such as 1% or 0.01"
        return self._number(expected, percentage_of, lambda x: 0 < x < 1)

    def choice(self, allowed: Sequence[str], synonyms: Mapping[str, str] | None = None) -> str:
        """Return one of the allowed words. `synonyms` are other names for them, which a refusal
        resolves."""
        expected = f"{', '.join(allowed[:-1])} or {allowed[-1]}" if len(allowed) > 1 else allowed[0]
        text = self._scalar(expected)
        if text not in allowed:
            hint = did_you_mean(text, allowed, synonyms)
            raise self.refusal(f"expected {expected}, got {text!r}{hint}")
        return text

    def distinct_texts(self) -> list[str]:
        """Return the scalars of a list, without duplicates."""
        seen: list[str] = []
        for item in self.items():
            text = item.text()
            if text in seen:
                raise item.refusal(f"{text!r} is listed twice")
            seen.append(text)
        return seen

    def fields(self, known: Collection[str], required: Collection[str] = ()) -> "Fields":
        """Return the entries of a mapping by key; refuse unknown, repeated and missing keys."""
        if not self.is_mapping:
            raise self.mismatch(f"a mapping with the keys {', '.join(known)}")
        found = Fields()
        for key_node, value_node in self.node.value:
            key = self._key(key_node, known)
            if key in found:
                raise self._at(key_node, f"duplicate key {key!r}")
            found[key] = self.named(key, value_node)
        for key in required:
            if key not in found:
                raise self.refusal(f"the key {key!r} is missing")
        return found

    def mapping(self) -> "Fields":
        """Return the entries of a mapping with arbitrary keys; refuse a repeated one."""
        if not self.is_mapping:
            raise self.mismatch("a mapping")
        return self.fields([str(key.value) for key, _ in self.node.value])

    def _key(self, node: yaml.Node, known: Collection[str]) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._at(node, "expected a scalar as the key")
        key = str(node.value)
        if key not in known:
            hint = did_you_mean(key, known) or f"; expected one of {', '.join(known)}"
            raise self._at(node, f"unknown key {key!r}{hint}")
        return key

    def _at(self, node: yaml.Node, message: str) -> BadInput:
        return Entry(self.name, node, self.path).refusal(message)

    def _number(
        self, expected: str, read: Callable[[str], Value], fits: Callable[[Value], bool]
    ) -> Value:
        text = self._plain(expected)
        try:
            value = read(text)
        except ValueError as error:
            raise self.mismatch(expected, repr(text)) from error
        if not fits(value):
            raise self.mismatch(expected, text)
        return value

    def _plain(self, expected: str) -> str:
        text = self._scalar(expected)
        if isinstance(self.node, yaml.ScalarNode) and self.node.style is not None:
            raise self.mismatch(expected, f"the quoted text {text!r}")
        return text

    def _scalar(self, expected: str) -> str:
        if not isinstance(self.node, yaml.ScalarNode) or self.node.tag.endswith(":null"):
            raise self.mismatch(expected)
        text = str(self.node.value).strip()
        if not text:
            raise self.mismatch(expected, "nothing")
        return text

    def _scalar_kind(self) -> str:
        return "nothing" if self.node.tag.endswith(":null") else repr(self.node.value)


class Fields(dict[str, Entry]):
    """The entries of a mapping by key."""

    def read(self, key: str, read: Callable[[Entry], Value], default: Value) -> Value:
        """Return the value of a key, or the default without it."""
        return read(self[key]) if key in self else default


def read_document(text: str, path: str) -> Entry:
    """Return the only document of a YAML text.

    Raises BadInput, with the line, for an invalid one."""
    return Entry("", read_node(text, path), path)
