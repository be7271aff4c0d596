"""Rows of fused attention find the operators that launched them, or report why not."""

import csv

import pytest

from collector.codec.errors import BadInput
from collector.model.vocabulary import COMPLETENESS
from collector.profiles.attention import (
    BLOCK_TABLE_SHAPE,
    LENGTHS_KV_SHAPE,
    LENGTHS_SHAPE,
    SOURCE_PROFILE,
    read_operator_rows,
)
from collector.profiles.kernel_details import read_profile
from tests.fixtures.profiles.variants import ProfileRow, write_profile
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast

KERNEL = "FusedInferAttentionScore"
DECODE = "128,4,128;12307,128,128;12307,128,128;;2048,2048;128;128;;;;;;;;128,512"
COLUMNS = ("Name", "Input Shapes", "Call Stack", "Host Self Duration(us)")


def fia(shapes=DECODE, duration="10.000"):
    slots = ";" * (30 - shapes.count(";"))
    cells = ("DT_BF16;DT_BF16;DT_BF16", "ND;ND;ND", '"128,4,128"', "DT_BF16", "ND", "MIX_AIC")
    return ProfileRow(KERNEL, f'"{shapes}{slots}"', *cells, duration=duration)


def slots_of(count, **at):
    """Return a row of arguments, given by position."""
    reported = {int(name.removeprefix("s")): text for name, text in at.items()}
    return [reported.get(position, "") for position in range(count)]


def write_operators(folder, *rows, columns=COLUMNS, join=";\r\n"):
    """Write an operator_details.csv as torch_npu writes it: slots joined by `;` and a line
    break."""
    path = folder / "operator_details.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for name, slots in rows:
            writer.writerow([name, join.join(slots), "a.py(1): f;\r\nb.py(2): g", "1.0"])
    return path


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True)
    return folder


def runtime(profile):
    return [dict(record.extra) for record in profile.records if record.kernel_type == KERNEL]


def test_kernel_row_without_an_operator_supplies_its_shapes(folder):
    (cells,) = runtime(read_profile([write_profile(folder, "K6", [fia(), ProfileRow()])]))
    assert cells == {
        SOURCE_PROFILE: "rank0_ascend_pt",
        LENGTHS_SHAPE: "128",
        LENGTHS_KV_SHAPE: "128",
        BLOCK_TABLE_SHAPE: "128,512",
        COMPLETENESS: "profile_shapes_only",
    }


def test_operator_in_the_layout_of_the_kernel_overrides_its_row(tmp_path):
    path = write_profile(tmp_path / "profile_a", "K5", [fia("8192,16,128;1171,128,512")])
    slots = slots_of(31, s0="5,16,1,512", s1="1171,1,128,512", s5="5", s14="5,512")
    write_operators(path.parent, ("aclnnFusedInferAttentionScoreV2", slots), join=";")
    profile = read_profile([tmp_path])
    (cells,) = runtime(profile)
    assert cells[SOURCE_PROFILE] == "profile_a"
    assert (cells[LENGTHS_SHAPE], cells[BLOCK_TABLE_SHAPE]) == ("5", "5,512")
    assert LENGTHS_KV_SHAPE not in cells
    (pairing,) = profile.report.pairings
    assert pairing.paired == 1 and names(pairing.warning, 1, "query")


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("npu::npu_fused_infer_attention_score", slots_of(40, s0="128,4,128", s18="128,64")),
        ("npu::npu_fused_infer_attention_score", slots_of(40, s0="128,4,128", s14="128,64")),
        ("npu::npu_fused_infer_attention_score_v2", slots_of(45, s0="128,4,128", s9="128,64")),
    ],
)
def test_block_table_has_another_position_in_each_public_function(folder, name, slots):
    write_operators(folder, (name, slots), ("aclnnFusedInferAttentionScoreV3", [""]))
    profile = read_profile([write_profile(folder, "K6", [fia("128,4,128;9,128,128")])])
    assert runtime(profile)[0][BLOCK_TABLE_SHAPE] == "128,64"
    assert profile.report.pairings[0].operator_rows == 1  # a row without shapes does not count


def test_functions_without_a_kernel_are_ignored(folder):
    names = ("npu::_npu_fused_infer_attention_score_get_max_workspace", "aten::add")
    path = write_operators(folder, *((name, slots_of(40, s0="128,4,128")) for name in names))
    assert read_operator_rows(path) == []


def test_rows_are_paired_in_order_and_block_tables_distinguish_cases(folder):
    tables = ("128,64", "128,32")
    shapes = [f"128,4,{width};9,128,128" for width in (128, 64)]
    operators = [
        ("npu::npu_fused_infer_attention_score", slots_of(40, s0=f"128,4,{width}", s18=table))
        for width, table in zip((128, 64), tables, strict=True)
    ]
    write_operators(folder, *operators, *operators)
    rows = [fia(shapes[0]), fia(shapes[1]), ProfileRow(), fia(shapes[0]), fia(shapes[1])]
    profile = read_profile([write_profile(folder, "K6", rows)])
    assert [cells[BLOCK_TABLE_SHAPE] for cells in runtime(profile)] == list(tables)
    assert profile.report.pairings[0].warning == ""
    attributes = [r.case.attribute(BLOCK_TABLE_SHAPE) for r in profile.records if r.extra]
    assert attributes == list(tables)


def test_only_the_prefix_with_equal_queries_is_paired_if_counts_differ(folder):
    shapes = [f"{tokens},4,128;9,128,128" for tokens in (1, 2, 3, 4)]
    operators = [
        ("npu::npu_fused_infer_attention_score", slots_of(40, s0=f"{t},4,128", s18=f"{t},7"))
        for t in (1, 2, 4)
    ]
    write_operators(folder, *operators)
    profile = read_profile([write_profile(folder, "K6", [fia(s) for s in shapes])])
    tables = [cells.get(BLOCK_TABLE_SHAPE) for cells in runtime(profile)]
    assert tables == ["1,7", "2,7", None, None]
    (pairing,) = profile.report.pairings
    assert (pairing.kernel_rows, pairing.operator_rows, pairing.paired) == (4, 3, 2)
    assert names(pairing.warning, "pair 3", "query")


def test_contradicting_operators_of_one_row_are_ignored_and_reported(folder):
    operators = [
        ("npu::npu_fused_infer_attention_score", slots_of(40, s0="128,4,128", s18=table))
        for table in ("128,64", "128,32")
    ]
    write_operators(folder, *operators)
    profile = read_profile([write_profile(folder, "K6", [fia(), fia()])])
    (cells,) = runtime(profile)
    assert cells[BLOCK_TABLE_SHAPE] == "128,512"
    (text,) = profile.report.disputed
    assert text.startswith(BLOCK_TABLE_SHAPE) and "128,32 or 128,64" in text


def test_other_operators_of_real_files_are_ignored(real_profiles):
    for run in ("inference_cann9.1_ascend_pt", "resnet_2025_rank0_ascend_pt"):
        path = real_profiles / run / "ASCEND_PROFILER_OUTPUT" / "operator_details.csv"
        assert read_operator_rows(path) == []


def test_bad_file_of_operators_is_refused_or_skipped(folder):
    path = write_profile(folder, "K6", [fia(), ProfileRow()])
    details = folder / "operator_details.csv"
    details.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 7\n")
    with pytest.raises(BadInput) as refused:
        read_profile([folder])
    assert refused.value.path == details
    report = read_profile([folder], skip_bad_rows=True).report
    assert report.unusable == (str(refused.value),) and report.files == (path,)


def test_folder_name_that_is_a_formula_is_not_recorded_as_source(tmp_path):
    path = write_profile(
        tmp_path / "=cmd|x!A0" / "ASCEND_PROFILER_OUTPUT", "K6", [fia(), ProfileRow()]
    )
    (cells,) = runtime(read_profile([path]))
    assert cells.get(SOURCE_PROFILE, "") == "" and cells[LENGTHS_SHAPE] == "128"
