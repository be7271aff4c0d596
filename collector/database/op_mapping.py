"""What an `op_mapping.yaml` must say before it is copied into a version, unchanged.

The file tells a consumer which kernels answer for an operator of a model. A mistake in it shows
late, as a miss or as a wrong sum, so it is refused here by its line.

Checked is what the way to an answer depends on. Keys that are not known here, at the top or of
an operator, are let through: the schema grows with its consumers, and the file is copied as it is.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from collector.case import normal_kernel_type
from collector.database.yaml_values import Value, read_values
from collector.errors import BadInput

_CATEGORIES = ("compute", "communication")
_QUERY_MODES = (
    "attention_special",
    "elementwise",
    "moe_fused",
    "mtp_projection",
    "scatter_nd_update_mla",
    "attention_lightning_indexer",
)
# Wherever one of these stands in an operator's entry, it names a CSV.
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
_OF_PROFILE = "profiling."  # what a profile shows and no operator of the model explains
_NAME_LISTS_BY_RANK = "kernel_types_by_input_rank"

Fields = Mapping[str, Value]


def check_op_mapping(text: str, *, path: Path | str) -> None:
    """Raise BadInput, with file and line, unless the text can serve as an op_mapping.yaml.

    Unknown keys pass, and the text is not changed: it is copied byte for byte.
    """
    document = read_values(text, path)
    top = document.fields()
    if "operator_mappings" not in top:
        raise document.refusal("missing key 'operator_mappings'")
    operators = top["operator_mappings"].fields()
    if not operators:
        raise top["operator_mappings"].refusal("expected at least one operator, got none")
    for name, entry in operators.items():
        _check_operator(Value(name, entry.node, path))


def zero_cost_kernels(text: str) -> frozenset[str]:
    """The kernel types of the operators that a checked op_mapping counts as free."""
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


def _check_operator(entry: Value) -> None:
    fields = entry.fields()
    for name in _kernel_names(entry):
        _check_kernel_name(name)
    _check_composite(fields)
    _check_dispatch(entry, fields)
    _check_inputs(entry, fields)


def _check_composite(fields: Fields) -> None:
    """Only a composite lists the kernels of which it is the sum."""
    if _is_set(fields, "composite"):
        if "sub_kernels" not in fields and not _is_set(fields, "decomposer"):
            raise fields["composite"].refusal(
                "requires a list sub_kernels, or decomposer: true, got neither"
            )
    elif "sub_kernels" in fields:
        raise fields["sub_kernels"].refusal("requires composite: true")


def _check_dispatch(entry: Value, fields: Fields) -> None:
    """An operator has exactly one way to get its duration. Without a mark, the kernel_type is that
    way; with a mark, the kernel_type only names the CSV."""
    marks = [
        mark
        for mark, is_marked in (
            ("composite", _is_set(fields, "composite")),
            ("category: communication", _is_communication(fields)),
            ("zero_cost", _is_set(fields, "zero_cost")),
            ("accepted_miss", _is_accepted_miss(fields)),
        )
        if is_marked
    ]
    if len(marks) > 1:
        raise entry.refusal(f"expected only one of these marks, got {' and '.join(marks)}")
    if "kernel_type" in fields:
        return
    if not marks:
        got = ", ".join(map(repr, fields)) or "nothing"
        raise entry.refusal(
            f"expected a kernel_type, composite, zero_cost or accepted_miss, got {got}"
        )
    lookup = "category" if _is_communication(fields) else "query_mode"
    if lookup in fields and "composite" not in marks:
        raise fields[lookup].refusal("requires a kernel_type")


def _check_inputs(entry: Value, fields: Fields) -> None:
    """How the operator's inputs are compared with those of a row."""
    count = fields["tc_input_count"].count() if "tc_input_count" in fields else None
    mode = fields["query_mode"].choice(_QUERY_MODES) if "query_mode" in fields else ""
    if mode == "elementwise" and count is not None:
        raise fields["tc_input_count"].refusal("cannot be combined with query_mode: elementwise")
    subcategory = fields["compute_subcategory"].text() if "compute_subcategory" in fields else ""
    if subcategory == "quantized_matmul":
        _check_formats(entry, fields, count)


def _check_formats(entry: Value, fields: Fields, count: int | None) -> None:
    """A quantized matmul knows its weight by the format, so each compared input has one."""
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
    """Every value of an entry, however deep, that must be the name of a kernel."""
    waiting, seen = [entry], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value.node) in seen:  # by an alias
            continue
        seen.add(id(value.node))
        for key, child in value.children():
            if key in _NAME_KEYS:
                yield child
            elif key in _NAME_LIST_KEYS:
                yield from child.items()
            elif key == _NAME_LISTS_BY_RANK:
                for names in child.fields().values():
                    yield from names.items()
            else:
                waiting.append(child)


def _check_kernel_name(value: Value) -> None:
    text = value.text()
    try:
        normal_kernel_type(text)
    except BadInput as error:
        raise value.refusal(str(error)) from error


def _is_set(fields: Fields, key: str) -> bool:
    return key in fields and fields[key].flag()


def _is_communication(fields: Fields) -> bool:
    return "category" in fields and fields["category"].choice(_CATEGORIES) == "communication"


def _is_accepted_miss(fields: Fields) -> bool:
    """The value is the reason why a miss is right; a bare `true` gives none."""
    value = fields.get("accepted_miss")
    if value is None:
        return False
    return value.flag() if value.is_a("bool") else bool(value.text().strip())
