"""The checks of an `op_mapping.yaml` before it is copied into a version, unchanged.

The file maps an operator of a model to its kernels, for a consumer. A mistake in what the lookup of
a duration depends on has a late effect, so it is refused here with its line. Unknown keys are
accepted: the schema grows with its consumers.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from collector.codec.errors import BadInput
from collector.codec.yaml_nodes import NamedNode, line_of, read_node, refusal_of
from collector.model.case import normal_kernel_type

# The values of a tree's YAML file with their name and line, for checks that report them.
#
# The file may be of another project: keys are not limited, and merge keys (`<<`) and aliases are
# followed as a loader follows them. Only YAML's own types are constructed.

# A message names the kind of a value, never the value: the user who names a file for this program
# to read may not be allowed to read it. Keys are named, as columns of a CSV are.
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
        """Return the values of a mapping by key, including those from `<<`."""
        if not self.is_mapping:
            raise self.mismatch("a mapping")
        # A key of the mapping comes after the same key from `<<`, so the own value is used.
        return {key.value: self.named(key.value, value) for key, value in self.node.value}

    def text(self) -> str:
        """Return a text as YAML reads it: not a number or a boolean."""
        if not self.is_a("str"):
            raise self.mismatch("text")
        return str(self.node.value)

    def choice(self, allowed: Sequence[str]) -> str:
        text = self.text()
        if text not in allowed:
            raise self.refusal(f"expected one of {', '.join(allowed)}, got other text")
        return text

    def flag(self) -> bool:
        if not self.is_a("bool"):
            raise self.mismatch("true or false")
        return yaml.SafeLoader.bool_values[str(self.node.value).lower()]

    def count(self) -> int:
        text = str(self.node.value)
        if not (self.is_a("int") and text.isdecimal() and int(text) > 0):
            raise self.mismatch("an integer of at least 1")
        return int(text)

    def is_a(self, kind: str) -> bool:
        """Return whether this is a scalar that YAML reads as `str`, `bool`, `int`, `null` …"""
        return isinstance(self.node, yaml.ScalarNode) and self.node.tag.endswith(f",2002:{kind}")

    def _scalar_kind(self) -> str:
        return _KINDS.get(self.node.tag.rpartition(":")[2], "another value")


def read_values(text: str, path: Path | str) -> Value:
    """Return the single document of a text. Raises BadInput, with the line, if a loader would
    refuse it, or if a key occurs twice: a loader would drop one of them."""
    node = read_node(text, path)
    _check_keys(node, path)
    try:
        # This refuses tags and dates that do not load, and inserts the keys from `<<`.
        yaml.constructor.SafeConstructor().construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise refusal_of(error, path) from error
    except (ValueError, LookupError, AttributeError) as error:
        # PyYAML raises these for a scalar that does not match its tag, such as 2026-02-30 and
        # `!!bool 7`.
        raise BadInput("cannot load a value: it does not match its YAML tag", path=path) from error
    except RecursionError as error:
        raise BadInput("cannot read the YAML: nested too deeply", path=path) from error
    return Value("", node, path)


def _check_keys(document: yaml.Node, path: Path | str) -> None:
    waiting, seen = [document], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:  # through an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)
        if not isinstance(node, yaml.MappingNode):
            continue
        lines: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise Value("", key, path).refusal("expected a scalar key")
            if key.value in lines:
                what = f"duplicate key; first defined in line {lines[key.value]}"
                raise Value("", key, path).refusal(what)
            lines[key.value] = line_of(key)
            waiting.append(value)


_CATEGORIES = ("compute", "communication")
_QUERY_MODES = (
    "attention_special",
    "elementwise",
    "moe_fused",
    "mtp_projection",
    "scatter_nd_update_mla",
    "attention_lightning_indexer",
)
# At any depth of an operator's entry, the value of one of these keys names a CSV.
_NAME_KEYS = frozenset(
    {
        "kernel_type",
        "primary_kernel_type",
        "degenerate_bmm_kernel_type",
        "mtp_projection_kernel_type",
        "source_kernel_type",
    }
)
_NAME_LIST_KEYS = frozenset({"alternate_kernel_types", "sub_kernels"})
_OF_PROFILE = "profiling."  # kernels of a profile that no operator of the model explains
_NAME_LISTS_BY_RANK = "kernel_types_by_input_rank"

Fields = Mapping[str, Value]


def check_op_mapping(text: str, *, path: Path | str) -> None:
    """Raise BadInput, with file and line, unless the text is a valid op_mapping.yaml.

    Unknown keys are accepted, and the text is not changed: it is copied byte for byte."""
    document = read_values(text, path)
    top = document.fields()
    if "operator_mappings" not in top:
        raise document.refusal("missing key 'operator_mappings'")
    operators = top["operator_mappings"].fields()
    if not operators:
        raise top["operator_mappings"].refusal("expected at least one operator, got none")
    for name, node in operators.items():
        entry = Value(name, node.node, path)
        fields = entry.fields()
        for kernel in _kernel_names(entry):
            try:
                normal_kernel_type(kernel.text())
            except BadInput as error:
                raise kernel.refusal(str(error)) from error
        _check_composite(fields)
        _check_dispatch(entry, fields)
        _check_inputs(entry, fields)


def zero_cost_kernels(text: str) -> frozenset[str]:
    """Return the kernel types of the operators that a checked op_mapping counts as free."""
    operators = read_values(text, "op_mapping.yaml").fields()["operator_mappings"].fields()
    found = set()
    for name, entry in operators.items():
        fields = entry.fields()
        if not _is_set(fields, "zero_cost"):
            continue
        if "kernel_type" in fields:
            found.add(fields["kernel_type"].text())
        elif name.startswith(_OF_PROFILE):
            found.add(name.removeprefix(_OF_PROFILE))
    return frozenset(found)


def _check_composite(fields: Fields) -> None:
    """Check that only a composite lists sub_kernels, the kernels whose durations it adds."""
    if _is_set(fields, "composite"):
        if "sub_kernels" not in fields and not _is_set(fields, "decomposer"):
            raise fields["composite"].refusal(
                "requires a list sub_kernels, or decomposer: true, got neither"
            )
    elif "sub_kernels" in fields:
        raise fields["sub_kernels"].refusal("requires composite: true")


def _check_dispatch(entry: Value, fields: Fields) -> None:
    """Check that an operator has exactly one way to get its duration. Without a mark, the
    kernel_type is that way; with a mark, the kernel_type only names the CSV."""
    category = fields["category"].choice(_CATEGORIES) if "category" in fields else ""
    is_communication = category == "communication"
    is_accepted_miss = False
    if (miss := fields.get("accepted_miss")) is not None:  # the reason for it; `true` gives none
        is_accepted_miss = miss.flag() if miss.is_a("bool") else bool(miss.text().strip())
    ways = {
        "composite": _is_set(fields, "composite"),
        "category: communication": is_communication,
        "zero_cost": _is_set(fields, "zero_cost"),
        "accepted_miss": is_accepted_miss,
    }
    marks = [mark for mark, is_marked in ways.items() if is_marked]
    if len(marks) > 1:
        raise entry.refusal(f"expected only one of these marks, got {' and '.join(marks)}")
    if "kernel_type" in fields:
        return
    if not marks:
        got = ", ".join(map(repr, fields)) or "nothing"
        raise entry.refusal(
            f"expected a kernel_type, composite, zero_cost or accepted_miss, got {got}"
        )
    lookup = "category" if is_communication else "query_mode"
    if lookup in fields and "composite" not in marks:
        raise fields[lookup].refusal("requires a kernel_type")


def _check_inputs(entry: Value, fields: Fields) -> None:
    count = fields["tc_input_count"].count() if "tc_input_count" in fields else None
    mode = fields["query_mode"].choice(_QUERY_MODES) if "query_mode" in fields else ""
    if mode == "elementwise" and count is not None:
        raise fields["tc_input_count"].refusal("cannot be combined with query_mode: elementwise")
    subcategory = fields["compute_subcategory"].text() if "compute_subcategory" in fields else ""
    if subcategory != "quantized_matmul":
        return
    # It finds its weight by the format, so each compared input has one.
    if count is None or "expected_input_formats" not in fields:
        raise entry.refusal(
            "compute_subcategory: quantized_matmul requires tc_input_count and "
            "expected_input_formats"
        )
    formats = [item.text() for item in fields["expected_input_formats"].items()]
    if len(formats) != count:
        raise fields["expected_input_formats"].refusal(
            f"expected {count} formats (tc_input_count), got {len(formats)}"
        )


def _kernel_names(entry: Value) -> Iterator[Value]:
    """Yield every value of an entry, at any depth, that must be the name of a kernel."""
    waiting, seen = [entry], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value.node) in seen:  # through an alias
            continue
        seen.add(id(value.node))
        children = value.numbered() if value.is_list else ()
        named = value.fields().items() if value.is_mapping else (("", one) for one in children)
        for key, child in named:
            if key in _NAME_KEYS:
                yield child
            elif key in _NAME_LIST_KEYS:
                yield from child.items()
            elif key == _NAME_LISTS_BY_RANK:
                for names in child.fields().values():
                    yield from names.items()
            else:
                waiting.append(child)


def _is_set(fields: Fields, key: str) -> bool:
    return key in fields and fields[key].flag()
