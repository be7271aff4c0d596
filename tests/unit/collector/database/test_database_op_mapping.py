"""Valid and invalid contents of an op_mapping.yaml, and the reported line of an error."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.database.op_mapping import check_op_mapping, zero_cost_kernels
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast

RICH = (Path(__file__).parents[3] / "fixtures" / "op_mapping" / "rich.yaml").read_text("utf-8")


COMPOSITE = ("aten.x.composite", "sub_kernels", "decomposer")
CATEGORY, COUNT, QUERY_MODE, SUB_KERNELS = (
    f"aten.x.{name}" for name in ("category", "tc_input_count", "query_mode", "sub_kernels")
)
QUANTIZED = ("quantized_matmul", "tc_input_count", "expected_input_formats")


def refused(text: str) -> str:
    with pytest.raises(BadInput) as caught:
        check_op_mapping(text, path="op_mapping.yaml")
    return str(caught.value)


def mapped(*lines: str, operator: str = "aten.x") -> str:
    """A file of one operator, whose first line is the third of the file."""
    return "operator_mappings:\n" + f"  {operator}:\n" + "".join(f"    {line}\n" for line in lines)


def test_every_feature_of_the_schema_is_accepted() -> None:
    check_op_mapping(RICH, path="rich.yaml")


@pytest.mark.parametrize("ends", ["\r\n", "\r"])
def test_line_ends_and_byte_order_mark_are_accepted(ends: str) -> None:
    check_op_mapping("\ufeff" + RICH.replace("\n", ends), path="rich.yaml")


@pytest.mark.parametrize(
    "lines",
    [
        ("kernel_type: Add",),
        ("kernel_type: hcom_allReduce_", "category: communication"),
        ("composite: true", "sub_kernels: [RmsNorm]"),
        ("composite: yes", "decomposer: true"),
        ("composite: true", "decomposer: true", "sub_kernels: [RmsNorm]"),
        ("composite: true", "kernel_type: Add", "sub_kernels: [Add, Mul]"),
        ("zero_cost: true",),
        ("zero_cost: true", "kernel_type: MemSet"),
        ("accepted_miss: paid for elsewhere",),
        ("accepted_miss: paid for elsewhere", "kernel_type: Index"),
        ("accepted_miss: ''", "kernel_type: Index"),
        ("zero_cost: false", "kernel_type: Add"),
        ("kernel_type: Add", "compute_subcategory: of_a_later_schema"),
    ],
)
def test_each_kind_of_mapping_is_accepted(lines: tuple[str, ...]) -> None:
    check_op_mapping(mapped(*lines), path="op_mapping.yaml")


@pytest.mark.parametrize(
    ("lines", "line", "named"),
    [
        ((), 2, ("mapping",)),
        (("notes: none of them",), 3, ("kernel_type", "zero_cost", "accepted_miss", "'notes'")),
        (("accepted_miss: ''",), 3, ("kernel_type", "zero_cost", "'accepted_miss'")),
        (("zero_cost: false",), 3, ("kernel_type", "accepted_miss", "'zero_cost'")),
        (("zero_cost: maybe",), 3, ("aten.x.zero_cost", "true", "false")),
        (("zero_cost: true", "accepted_miss: why"), 3, ("zero_cost", "accepted_miss")),
        (
            ("composite: true", "decomposer: true", "zero_cost: true"),
            3,
            ("composite", "zero_cost"),
        ),
        (
            ("kernel_type: hcom_a_", "category: communication", "zero_cost: true"),
            3,
            ("category", "communication", "zero_cost"),
        ),
        (("category: communication",), 3, (CATEGORY, "kernel_type")),
        (
            ("kernel_type: Add", "category: comm"),
            4,
            ("aten.x.category", "compute", "communication"),
        ),
        (("notes: a sum", "composite: true"), 4, COMPOSITE),
        (("composite: true", "decomposer: false"), 3, COMPOSITE),
        (("composite: true", "sub_kernels: RmsNorm"), 4, (SUB_KERNELS, "list")),
        (("composite: true", "sub_kernels: []"), 4, (SUB_KERNELS,)),
        (("kernel_type: Add", "sub_kernels: [Mul]"), 4, (SUB_KERNELS, "composite")),
        (("composite: no", "kernel_type: A", "sub_kernels: [B]"), 5, (SUB_KERNELS, "composite")),
        (
            ("kernel_type: Add", "query_mode: elementwize"),
            4,
            (QUERY_MODE, "moe_fused", "elementwise"),
        ),
        (("zero_cost: true", "query_mode: moe_fused"), 4, (QUERY_MODE, "kernel_type")),
        (
            ("kernel_type: Add", "query_mode: elementwise", "tc_input_count: 2"),
            5,
            (COUNT, "query_mode", "elementwise"),
        ),
        (("kernel_type: Add", "tc_input_count: 0"), 4, (COUNT, 1)),
        (("kernel_type: Add", "tc_input_count: '2'"), 4, (COUNT, 1)),
        (
            ("kernel_type: Q", "compute_subcategory: quantized_matmul", "tc_input_count: 2"),
            3,
            QUANTIZED,
        ),
        (
            (
                "kernel_type: Q",
                "compute_subcategory: quantized_matmul",
                "tc_input_count: 2",
                "expected_input_formats: [ND]",
            ),
            6,
            ("aten.x.expected_input_formats", "tc_input_count", 2, 1),
        ),
        (
            (
                "kernel_type: Q",
                "compute_subcategory: quantized_matmul",
                "expected_input_formats: [ND, ND]",
            ),
            3,
            QUANTIZED,
        ),
    ],
)
def test_invalid_mapping_is_refused_with_its_line(
    lines: tuple[str, ...], line: int, named: tuple[object, ...]
) -> None:
    message = refused(mapped(*lines))
    assert message.startswith(f"op_mapping.yaml:{line}: aten.x") and names(message, *named)


@pytest.mark.parametrize(
    "lines",
    [
        ("kernel_type: ../Add",),
        ("kernel_type: a/b",),
        ("kernel_type: ''",),
        ("kernel_type:",),
        ("kernel_type: 12",),
        ("kernel_type: [Add]",),
        ("alternate_kernel_types: [a b]", "kernel_type: Add"),
        ("alternate_kernel_types: Add", "kernel_type: Add"),
        ("sub_kernels: [{kernel_type: Add}]", "composite: true"),
        ("primary_kernel_type: a b", "composite: true", "decomposer: true"),
        ("kernel_types_by_input_rank: {3: [a b]}", "kernel_type: Add"),
        ("kernel_types_by_input_rank: [Add]", "kernel_type: Add"),
        ("embedded_compute: [{kernel_type: a b}]", "kernel_type: Add"),
        ("decomposer_options: {deep: [{kernel_type: a b}]}", "kernel_type: Add"),
    ],
)
def test_invalid_kernel_name_is_refused_anywhere(lines: tuple[str, ...]) -> None:
    assert refused(mapped(*lines)).startswith("op_mapping.yaml:3: aten.x.")


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        ("", 1, ("empty",)),
        ("# nothing but this\n", 1, ("empty",)),
        ("a text", 1, ("mapping",)),
        ("- a\n- list\n", 1, ("mapping", "list")),
        ("version: 1\n", 1, ("'operator_mappings'",)),
        ("version: 1\noperator_mappings:\n", 2, ("operator_mappings", "mapping")),
        ("version: 1\noperator_mappings: {}\n", 2, ("operator_mappings", "operator")),
        ("version: 1\noperator_mappings: [a]\n", 2, ("operator_mappings", "mapping", "list")),
        ("operator_mappings:\n  aten.x: MatMulV2\n", 2, ("aten.x", "mapping")),
        ("a: 1\nb: [1,\n", 3, ("YAML",)),
        ("a: 1\n\tb: 2\n", 2, ("YAML",)),
        ("a: 1\nb: \x00\n", 2, ("YAML",)),
        ("a: 1\nb: *missing\n", 2, ("YAML", "alias")),
        ("a: 1\nb: !!python/name:os.system\n", 2, ("YAML", "constructor")),
        ("a: 1\n---\nb: 2\n", 2, ("YAML", "document")),
        ("? [a]\n: 1\n", 1, ("key",)),
        ("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", 5, ("key", "line 3")),
        ("a: 1\nb: [{c: 1, c: 2}]\n", 2, ("key", "line 2")),
    ],
)
def test_file_that_is_not_an_op_mapping_is_refused(
    text: str, line: int, named: tuple[object, ...]
) -> None:
    message = refused(text)
    assert message.startswith(f"op_mapping.yaml:{line}: ") and names(message, *named)


def test_operator_mapped_twice_is_refused() -> None:
    again = "  'aten.mm.default': {kernel_type: Add}\n\ntorch_npu_reference:"
    message = refused(RICH.replace("\ntorch_npu_reference:", again))
    first = RICH[: RICH.index('"aten.mm.default"')].count("\n") + 1
    assert names(message, "key", f"line {first}")


@pytest.mark.parametrize("value", ["2026-02-30", "!!bool 7", "!!int ''", "!!timestamp soon"])
def test_unsafe_yaml_tag_is_refused(value: str) -> None:
    message = refused(f"a: {value}\n")
    assert message.startswith("op_mapping.yaml: ") and names(message, "tag")


@pytest.mark.thorough
def test_deeply_nested_file_is_refused() -> None:
    message = refused("a: " + "[" * 5000)
    assert message.startswith("op_mapping.yaml: ") and names(message, "nested")


def test_name_with_a_line_break_is_quoted() -> None:
    message = refused(mapped("notes: none", operator='"aten\\nx"'))
    assert message.startswith("op_mapping.yaml:3: 'aten\\nx': ") and names(message, "kernel_type")


def test_merge_key_supplies_values_that_explicit_keys_override() -> None:
    base = "base: &base {kernel_type: Add, query_mode: elementwise}\noperator_mappings:\n"
    check_op_mapping(f"{base}  aten.x: {{<<: *base}}\n", path="op_mapping.yaml")
    counted = "  aten.x: {<<: *base, query_mode: moe_fused, tc_input_count: 2}\n"
    check_op_mapping(base + counted, path="op_mapping.yaml")
    message = refused(f"{base}  aten.x: {{<<: *base, tc_input_count: 2}}\n")
    assert names(message, COUNT, "query_mode", "elementwise")


def test_self_referencing_value_is_accepted() -> None:
    check_op_mapping(mapped("kernel_type: Add", "more: &more [*more]"), path="op_mapping.yaml")


@pytest.mark.thorough
@settings(max_examples=100)
@given(at=st.integers(0, len(RICH)), length=st.integers(0, 40), put=st.text(max_size=5))
def test_a_damaged_file_is_accepted_or_refused_in_one_line(at: int, length: int, put: str) -> None:
    """For anything cut out or inserted: no other error, and accepted text can be loaded."""
    text = RICH[:at] + put + RICH[at + length :]
    try:
        check_op_mapping(text, path="op_mapping.yaml")
    except BadInput as error:
        assert str(error).startswith("op_mapping.yaml") and "\n" not in str(error)
    else:
        loaded = yaml.safe_load(text)["operator_mappings"]
        assert all(isinstance(entry, dict) for entry in loaded.values())


def test_kernels_that_count_as_free_are_listed():
    text = Path("tests/fixtures/op_mapping/rich.yaml").read_text()
    assert zero_cost_kernels(text) == {"MemSet"}
