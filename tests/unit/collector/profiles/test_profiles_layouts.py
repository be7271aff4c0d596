"""Every layout of kernel_details and op_summary is read by the names of its columns."""

import pytest

from collector.codec.errors import BadInput
from collector.profiles.headers import read_header
from collector.profiles.kernel_details import read_profile
from collector.profiles.launches import read_op_summary
from tests.fixtures.profiles.variants import (
    LAYOUTS,
    WITH_SHAPES,
    ProfileRow,
    collective,
    counters_of,
    profile_bytes,
    unknown_inputs,
    write_profile,
)
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast


def sample_rows(layout):
    """Two cases, one of them twice; the last counter is unknown in one row."""
    names = counters_of(layout)
    first = {name: f"{at}.500" for at, name in enumerate(names)}
    second = {name: f"{at + 1}.500" for at, name in enumerate(names)} | {names[-1]: "N/A"}
    return [
        ProfileRow(duration="10.000", other=first),
        ProfileRow("Cast", '"16"', "FLOAT", "ND", '"16"', "DT_BF16", "ND", duration="2.000"),
        ProfileRow(duration="20.000", other=second),
        collective("1764246877147674.500\t", "436.140"),
        unknown_inputs("MemSet", duration="1.000"),
    ]


@pytest.mark.parametrize("layout", WITH_SHAPES)
def test_each_layout_gives_cases_with_statistics(layout, tmp_path):
    path = write_profile(tmp_path, layout, sample_rows(layout))
    profile = read_profile([path])
    add, cast, mem_set = profile.records
    names = counters_of(layout)
    assert (add.kernel_type, cast.kernel_type, mem_set.kernel_type) == ("Add", "Cast", "MemSet")
    assert add.cells["Input Shapes"] == '"4096,1024;4096,1024"'
    assert add.cells["Accelerator Core"] == "AI_VECTOR_CORE"
    assert add.cells["OP State"] == ("dynamic" if "OP State" in LAYOUTS[layout][1] else "")
    assert (add.profile.count, add.profile.mean_us, add.profile.median_us) == (2, 15.0, 15.0)
    assert add.profile.std_us == 5.0
    expected = {name: at + 1.0 for at, name in enumerate(names)}
    expected[names[-1]] = len(names) - 0.5  # N/A is excluded from the mean
    assert dict(add.profile.counters) == expected
    assert cast.profile.counters == ()


@pytest.mark.parametrize("layout", WITH_SHAPES)
def test_each_layout_is_counted(layout, tmp_path):
    report = read_profile([write_profile(tmp_path, layout, sample_rows(layout))]).report
    assert (report.rows, report.compute_rows, report.communication_rows) == (5, 4, 1)
    assert report.unknown_input_rows == (("MemSet", 1),)
    assert report.skipped == ()


@pytest.mark.parametrize("layout", WITH_SHAPES)
def test_each_layout_gives_launches(layout, tmp_path):
    path = write_profile(tmp_path, layout, sample_rows(layout))
    launches = [launch for launch in read_op_summary(path) if launch.op_type == "Add"]
    assert [launch.duration_us for launch in launches] == [10.0, 20.0]
    assert launches[0].start_ns == 1764246877083299960
    assert launches[0].name == "aclnnAdd_AddAiCore_Add"
    assert launches[0].task_type == launches[0].cells["Accelerator Core"] == "AI_VECTOR_CORE"
    assert set(launches[0].counters) == set(counters_of(layout))
    assert counters_of(layout)[-1] not in launches[1].counters


@pytest.mark.parametrize("layout", WITH_SHAPES)
def test_only_counter_columns_are_counters(layout, tmp_path):
    header = read_header(LAYOUTS[layout][1].split(","), path=tmp_path)
    assert header.counters == counters_of(layout)


def test_level_0_profile_is_refused_with_a_hint(tmp_path):
    path = write_profile(tmp_path, "K2", [ProfileRow(kernel="N/A", core="N/A")])
    with pytest.raises(BadInput, match=naming("level 0", "Level1")) as error:
        read_profile([path])
    assert (error.value.path, error.value.line) == (path, 1)


def test_missing_columns_of_a_table_with_shapes_are_named(tmp_path):
    """A table that another program wrote: it was not profiled at level 0."""
    path = tmp_path / "kernel_details.csv"
    path.write_text("Name,Type,Accelerator Core,Duration(us),Input Shapes,Output Shapes\n")
    with pytest.raises(BadInput, match="columns Input Data Types, Input Formats are missing") as no:
        read_profile([path])
    assert (no.value.path, no.value.line) == (path, 1) and "Output Formats" in str(no.value)
    path.write_text(path.read_text().replace("Input Shapes", "Input Shapes,Input Data Types"))
    with pytest.raises(BadInput, match="column Input Formats is missing"):
        read_profile([path])


def test_level_0_with_empty_shape_columns_is_refused_too(tmp_path):
    rows = [unknown_inputs("N/A", core="N/A", state="N/A")] * 3
    with pytest.raises(BadInput, match=naming("level 0", "Level1")):
        read_profile([write_profile(tmp_path, "O2", rows)])


def test_rows_without_an_operator_are_counted(tmp_path):
    rows = [ProfileRow(), unknown_inputs("N/A", core="N/A", state="N/A")]
    profile = read_profile([write_profile(tmp_path, "O2", rows)])
    assert [record.kernel_type for record in profile.records] == ["Add"]
    assert profile.report.unknown_input_rows == (("N/A", 1),)


def test_missing_column_is_named(tmp_path):
    path = tmp_path / "kernel_details.csv"
    path.write_bytes(
        profile_bytes("K5", [ProfileRow()]).replace(b",Duration(us),", b",Length(us),")
    )
    with pytest.raises(BadInput, match=naming("kernel_details.csv:1:", "Duration(us)")):
        read_profile([path])


def test_format_of_another_tool_is_refused(tmp_path):
    path = tmp_path / "op_summary_1.csv"
    path.write_text("block_id,sub_block_id,aic_time(us),\n0,cube0,1.5,\n")
    with pytest.raises(
        BadInput, match=naming("op_summary_1.csv:1:", "kernel_details", "op_summary")
    ):
        read_profile([path])


def test_duplicate_column_is_refused(tmp_path):
    path = tmp_path / "kernel_details.csv"
    path.write_bytes(profile_bytes("K5", [ProfileRow()]).replace(b"Wait Time(us)", b"Type"))
    with pytest.raises(BadInput, match=naming("kernel_details.csv:1:", "'Type'")):
        read_profile([path])


def test_custom_register_with_numbers_is_a_counter(tmp_path):
    path = tmp_path / "kernel_details.csv"
    rows = [
        ProfileRow(other={"aic_total_cycles": "5"}),
        ProfileRow(other={"aic_total_cycles": "N/A"}),
    ]
    path.write_bytes(profile_bytes("K5", rows).replace(b"aic_total_cycles", b"0x500"))
    (record,) = read_profile([path]).records
    assert dict(record.profile.counters) == {"0x500": 5.0}
