"""Cases on the grid of a kernel."""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.model.case import case_from_cells
from collector.ops.refusals import refusal
from collector.ops.registry import find_operator
from collector.workloads.grid import SampleRequest, choose, templates
from collector.workloads.patterns import bundled_patterns, read_patterns
from tests.fixtures.op_rows import rows_of as fixture_rows
from tests.unit.collector.naming import names

PATTERNS = bundled_patterns()
KERNELS = [kernel for pattern in PATTERNS.patterns for kernel in pattern.kernels]
PRODUCTS = [(64, 32), (96, 64), (320, 128)]
EXPERTS = [(4, 64, 32), (2, 256, 96)]
ANY = 1 << 40


def refused(case):
    return refusal(case, find_operator, "npu")


def request(record):
    found = refused(record.case)
    return found.reason if found else record


def chosen(kernel, *, rows=20, seed=0, like=None, sizes=None, largest=ANY, known=()):
    pattern = PATTERNS.of(kernel)
    like = templates(row.case for row in like or fixture_rows(kernel))
    sizes = sizes or (EXPERTS if pattern.source == "experts" else PRODUCTS)
    return choose(pattern, like, sizes, known, request, SampleRequest(rows, seed, largest))


def test_density_of_a_mask_is_an_axis():
    found = chosen("MaskedFill", rows=None, like=fixture_rows("MaskedFill")[:1]).records
    densities = Counter(record.extra["Runtime mask_density"] for record in found)
    assert set(densities) == {"1", "10", "50", "90", "99"}
    assert len(set(densities.values())) == 1  # all of them for each size


def test_imbalance_of_expert_loads_is_an_axis():
    kernel = "GroupedMatmulSwigluQuant"
    found = chosen(kernel, rows=None).records
    column = "Runtime group_list_values"
    loads = [
        [int(end) for end in record.extra[column].split(",")]
        for record in found
        if record.extra.get(column)
    ]
    assert 0 < len(loads) < len(found)  # the others are even, which a row does not contain
    for ends in loads:
        counts = [end - start for start, end in pairwise([0, *ends])]
        assert counts == sorted(counts) and counts[0] < counts[-1]


@pytest.mark.parametrize("kernel", ["MaskedFill", "GroupedMatmulSwigluQuant"])
def test_rows_with_such_an_axis_add_no_further_points(kernel):
    rows = fixture_rows(kernel)
    first = chosen(kernel, like=rows)
    again = chosen(
        kernel, like=[*rows, *first.records], known={one.case_id for one in first.records}
    )
    assert len(first.records) == 20 and not again.records
    assert (again.points, again.known) == (first.points, 20)


def test_kernels_have_at_most_one_pattern():
    assert max(Counter(KERNELS).values()) == 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_pattern_makes_accepted_cases_from_existing_rows(kernel):
    op = find_operator(kernel)
    family = [row for name in (kernel, *op.family) for row in fixture_rows(name)]
    rows = [type(row)(kernel, row.cells, row.extra) for row in family]
    found = chosen(kernel, rows=3, like=rows).records
    assert found
    for record in found:
        assert record.kernel_type == kernel and not refused(record.case)


def row(shapes, dtypes, formats, out, kernel="MatMulV2", state="dynamic"):
    cells = {
        "OP State": state,
        "Accelerator Core": "MIX_AIC",
        "Input Shapes": f'"{shapes}"',
        "Input Data Types": dtypes,
        "Input Formats": formats,
        "Output Shapes": f'"{out}"',
        "Output Data Types": "DT_BF16",
        "Output Formats": "ND",
    }
    return fixture_rows("MatMulV2")[0].__class__(kernel, cells, {})


PLAIN = row("4,8;16,8", "DT_BF16;DT_BF16", "ND;ND", "4,16")
BLOCKS = row("4,32;2,4,16,16", "DT_BF16;DT_BF16", "ND;FRACTAL_NZ", "4,64")


def test_every_existing_dtype_and_format_is_requested():
    found = chosen("MatMulV2", rows=None, like=[PLAIN, BLOCKS, PLAIN])
    assert found.points == 2 * 37 * 3 == len(found.records)
    formats = Counter(record.cells["Input Formats"] for record in found.records)
    assert formats == {"ND;ND": 111, "ND;FRACTAL_NZ": 111}


def test_weight_in_blocks_is_recognised_by_its_format():
    shapes = {
        record.cells["Input Shapes"]
        for record in chosen("MatMulV2", rows=None, like=[BLOCKS], sizes=[(768, 5120)]).records
    }
    assert '"1,5120;320,48,16,16"' in shapes  # (768, 5120), as a profile writes it


def test_existing_and_too_large_points_are_not_chosen():
    every = chosen("MatMulV2", rows=None, like=[PLAIN]).records
    known = {record.case_id for record in every[:10]}
    rest = chosen("MatMulV2", rows=None, like=[PLAIN], known=known)
    assert not known & {record.case_id for record in rest.records}
    assert rest.known == 10 and len(rest.records) == len(every) - 10
    small = chosen("MatMulV2", rows=None, like=[PLAIN], largest=100_000)
    assert small.too_large and len(small.records) == len(every) - small.too_large
    assert all(sum(s.size_bytes for s in r.case.inputs) <= 100_000 for r in small.records)


@cache
def case_ids(kernel):
    """Return the cases of every point of its grid that would run."""
    return frozenset(record.case_id for record in chosen(kernel, rows=None).records)


@given(seed=st.integers(0, 1 << 30), rows=st.integers(1, 60))
@settings(max_examples=20)
def test_sample_has_runnable_cases_determined_by_its_seed(seed, rows):
    every = case_ids("PadV3")
    found = chosen("PadV3", rows=rows, seed=seed)
    ids = [record.case_id for record in found.records]
    assert len(set(ids)) == len(ids) == min(rows, len(every))
    assert set(ids) <= every
    assert found == chosen("PadV3", rows=rows, seed=seed)


def test_existing_points_count_so_that_a_repeated_request_adds_nothing():
    first = chosen("MatMulV2", rows=10, like=[PLAIN])
    known = {record.case_id for record in first.records}
    again = chosen("MatMulV2", rows=10, like=[PLAIN], known=known)
    assert not again.records and again.known == 10 and again.examined == first.examined
    more = chosen("MatMulV2", rows=15, like=[PLAIN], known=known)
    assert len(more.records) == 5 and more.known == 10


def test_case_of_two_points_is_chosen_once():
    like = [row("4,8;4,8", "DT_BF16;DT_BF16", "ND;ND", "4,8", "Add")]
    pattern = PATTERNS.of("Add")
    twice = replace(pattern, axes={"t": (1, 2, 2), "d": (8,)})
    found = choose(
        twice, templates(one.case for one in like), [], (), request, SampleRequest(None, 0, ANY)
    )
    assert (len(found.records), found.repeated, found.known) == (2, 1, 0)


def test_reason_for_no_case_is_that_of_the_first():
    found = chosen("TensorMove", rows=None)
    assert found.refused and names(found.why, "t * d >= 262144")
    found = chosen("TransposeBatchMatMul", rows=20)
    assert found.refused and names(found.why, 128)


@pytest.mark.parametrize(
    ("dtypes", "formats"),
    [("INT4;INT4", "ND;FRACTAL_NZ"), ("FLUFF;FLUFF", "FRACTAL_NZ;FRACTAL_NZ"), (";", ";")],
)
def test_row_of_unknown_dtypes_makes_no_case(dtypes, formats):
    like = [row("4,32;2,4,16,16", dtypes, formats, "4,64")]
    found = chosen("MatMulV2", rows=None, like=like)
    assert not found.records and found.why


def test_plain_matrix_of_a_row_stays_plain_in_any_format():
    like = [row("4,32;64,32", "DT_BF16;DT_BF16", "ND;FRACTAL_NZ", "4,64")]
    found = chosen("MatMulV2", rows=None, like=like, sizes=[(768, 5120)]).records
    assert '"1,5120;768,5120"' in {record.cells["Input Shapes"] for record in found}


def shapes_like(kernel, shapes, out, dtypes="DT_BF16;DT_BF16"):
    formats = ";".join("ND" for _ in dtypes.split(";"))
    found = chosen(kernel, rows=None, like=[row(shapes, dtypes, formats, out, kernel)]).records
    return {record.cells["Input Shapes"] for record in found}


def test_empty_slot_of_a_row_stays_empty():
    assert '"64,7168;"' in shapes_like("Add", "4,8;", "4,8")  # a tensor and a scalar
    assert '"64,7168;64,7168;"' in shapes_like(
        "MaskedFill", "4,8;4,8;", "4,8", "DT_BF16;BOOL;DT_BF16"
    )


def test_row_of_scalars_supplies_its_dtypes():
    assert '"64,7168;64,7168"' in shapes_like("Add", ";", "")


def test_linear_layer_with_a_bias_keeps_it():
    like = [row("4,8;16,8;16", "DT_BF16;DT_BF16;FLOAT", "ND;ND;ND", "4,16")]
    found = chosen("MatMulV2", rows=None, like=like, sizes=[(2560, 2048)]).records
    assert '"16,2048;2560,2048;2560"' in {record.cells["Input Shapes"] for record in found}


def test_experts_have_both_products():
    found = chosen("GroupedMatmul", rows=None, sizes=[(16, 7168, 2048)]).records
    weights = {record.case.inputs[1].shape for record in found}
    assert {(16, 7168, 4096), (16, 2048, 7168)} <= weights
    assert all(record.case.inputs[0].shape[1] in (7168, 2048) for record in found)


def test_lists_of_a_row_are_not_copied_to_other_shapes():
    lists = {"Runtime group_list_values": "2,5,10", "Runtime mode": "x"}
    (like,) = templates([case_from_cells("Add", {**PLAIN.cells, **lists})])
    assert like.settings == (("Runtime mode", "x"),)


def test_rows_without_tensors_are_not_templates():
    unknown = case_from_cells("Add", {"Input Shapes": "N/A"})
    slow = case_from_cells("Add", {**fixture_rows("Add")[0].cells, "Accelerator Core": "AI_CPU"})
    assert templates([unknown, slow]) == ()


PATTERN = """\
values:
  widths: [7, 9]
patterns:
  rows:
    axes: {t: tokens, d: widths}
    keep: [t * d <= 100]
    ways: [{inputs: ["t, d"], outputs: ["t, d"]}]
    kernels: [Muls]
"""
# What is wrong with a file of patterns: a change of the one above, and the line of the error.
BAD_PATTERNS = (
    ("widths: [7, 9]", "widths: [7, 7]", 2),
    ("widths: [7, 9]", "widths: [7, -9]", 2),
    ("widths: [7, 9]", "widths: []", 2),
    ("widths: [7, 9]", "products: [7, 9]", 2),
    ("patterns:", "pattern:", 3),
    ("d: widths}", "d: width}", 5),
    ("t: tokens, d: widths", "t: tokens, t: widths", 5),
    ("t: tokens, d: widths", "t: products, d: experts", 5),
    ("t: tokens, d: widths", "k: tokens, d: products", 5),
    ("t: tokens", "min: tokens", 5),
    ("t: tokens", "T: tokens", 5),
    ("[t * d <= 100]", "[t * x <= 100]", 6),
    ("[t * d <= 100]", "[t ** 2]", 6),
    ("[t * d <= 100]", "t", 6),
    ('outputs: ["t, d"]', 'outputs: ["t, e"]', 7),
    ('outputs: ["t, d"]', "outputs: [[t, d]]", 7),
    (', outputs: ["t, d"]', "", 7),
    ("[Muls]", "[Muls, Muls]", 8),
    ("[Muls]", "[../Muls]", 8),
    ("[Muls]", "[]", 8),
    ("[Muls]", "[Muls]\n    tile: 1", 9),
    ("[Muls]", "[Muls]\n    columns: {Density: t}", 9),
    ("[Muls]", "[Muls]\n    ends: {column: lengths, rows: t, groups: d}", 9),
)


def test_patterns_of_a_file_are_read(tmp_path):
    path = tmp_path / "patterns.yaml"
    path.write_text(PATTERN)
    found = read_patterns(path).of("Muls")
    assert found.axes == {"t": bundled_patterns().values["tokens"], "d": (7, 9)}
    assert found.value_names == {"t": "tokens", "d": "widths"}
    assert read_patterns(path).of("Sin") is None
    for right, wrong, line in BAD_PATTERNS:
        assert PATTERN.count(right) == 1, right
        path.write_text(PATTERN.replace(right, wrong))
        with pytest.raises(BadInput) as refused:
            read_patterns(path)
        assert refused.value.path == str(path) and refused.value.line == line, wrong
        assert "\n" not in str(refused.value), wrong
    path.write_text(
        PATTERN + "  other: {axes: {t: [1]}, ways: [{inputs: [t], outputs: [t]}], "
        "kernels: [Muls]}\n"
    )
    with pytest.raises(BadInput, match="Muls"):
        read_patterns(path)
    for data in (b"", b"\xff", b"patterns: {}", b"patterns: [1"):
        path.write_bytes(data)
        with pytest.raises(BadInput):
            read_patterns(path)
    with pytest.raises(BadInput):
        read_patterns(tmp_path / "absent.yaml")
