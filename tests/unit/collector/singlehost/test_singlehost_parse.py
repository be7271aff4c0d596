"""A profile becomes a tree, and is joined to one with rows of other producers."""

import csv
import gc
import io
import threading

import pytest

from collector.codec.errors import BadInput
from collector.database.layout import ATTENTION_COLUMNS, PARSER_COLUMNS, csv_bytes
from collector.database.tree import read_kernel_file
from collector.model.case import is_formula
from collector.model.vocabulary import BASE_CELLS
from collector.profiles.kernel_details import read_profile
from collector.singlehost.parse import COMMUNICATION_COLUMNS, parse_profile
from collector.singlehost.version_files import read_tree
from tests.fixtures.profiles.variants import (
    ProfileRow,
    collective,
    profile_bytes,
    unknown_inputs,
    write_profile,
)
from tests.unit.collector.database.consumer import Consumer
from tests.unit.collector.naming import names, naming

pytestmark = pytest.mark.fast

ROWS = (
    ProfileRow(duration="10.000", other={"aic_mac_ratio": "0.5"}),
    ProfileRow(duration="20.000", other={"aic_mac_ratio": "N/A"}),
    ProfileRow("Cast", '"16"', "FLOAT", "ND", '"16"', "DT_BF16", "ND", duration="2.000"),
    unknown_inputs("MemSet"),
    collective("1.000", "30.000"),
)


@pytest.fixture
def profile(tmp_path):
    return write_profile(tmp_path / "profile", "K5", ROWS)


@pytest.fixture
def version(tmp_path):
    return tmp_path / "tree" / "vllm0.18.0_torch2.9.0_cann8.5"


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_new_tree_has_a_file_for_each_kernel(profile, version):
    result = parse_profile([profile], version)
    names = sorted(path.name for path in version.iterdir())
    assert names == ["Add.csv", "Cast.csv", "reports", "unknown_inputs"]
    assert [
        (path.relative_to(version).as_posix(), k.added) for path, k in result.kernels.items()
    ] == [
        ("Add.csv", 1),
        ("Cast.csv", 1),
        ("unknown_inputs/MemSet.csv", 1),
    ]
    assert result.report.unknown_input_rows == (("MemSet", 1),)
    assert read_kernel_file(version / "Add.csv").columns == PARSER_COLUMNS


def test_cells_have_the_spelling_of_the_profiler_and_numbers_six_decimals(profile, version):
    parse_profile([profile], version)
    lines = (version / "Add.csv").read_bytes().split(b"\r\n")
    assert lines[1].startswith(
        b'dynamic,AI_VECTOR_CORE,"""4096,1024;4096,1024""",FLOAT;FLOAT,ND;ND,"""4096,1024""",'
        b"FLOAT,ND,15.000000,15.000000,5.000000,"
    )
    (row,) = read_kernel_file(version / "Add.csv").rows
    assert row["Profiling Average aic_mac_ratio"] == "0.500000"
    assert row["Profiling Average aiv_vec_ratio"] == ""


def test_communication_has_a_report(profile, version):
    result = parse_profile([profile], version)
    with result.communication.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert tuple(row) == COMMUNICATION_COLUMNS
    assert (row["Type"], row["Group"], row["Count"]) == ("hcom_allReduce_", "170", "1")
    assert row["Total Duration(us)"] == "30.000000"


def test_a_profile_without_communication_writes_no_report(tmp_path, version):
    result = parse_profile([write_profile(tmp_path / "p", "K5", [ProfileRow()])], version)
    assert result.communication is None
    assert not (version / "reports").exists()


def test_other_counters_become_further_columns(tmp_path, version):
    path = write_profile(tmp_path / "p", "K4", [ProfileRow(other={"vec_ratio": "0.25"})])
    parse_profile([path], version)
    file = read_kernel_file(version / "Add.csv")
    assert file.columns == (*PARSER_COLUMNS, "Profiling Average vec_ratio")
    assert file.rows[0]["Profiling Average vec_ratio"] == "0.250000"
    assert file.rows[0]["Profiling Average aic_mac_ratio"] == ""


def test_second_parse_changes_no_file(profile, version):
    parse_profile([profile], version)
    before = snapshot(version)
    stamps = {path: path.stat().st_mtime_ns for path in before}
    result = parse_profile([profile], version)
    assert [(k.added, k.updated, k.unchanged) for k in result.kernels.values()] == [(0, 0, 1)] * 3
    assert snapshot(version) == before
    assert {path: path.stat().st_mtime_ns for path in before} == stamps


def test_columns_of_other_producers_are_kept(profile, version):
    version.mkdir(parents=True)
    columns = (*BASE_CELLS, "Average Duration(us)", "MicroBench aic_mac_ratio", "EP Size", "Note")
    texts = ("dynamic", "AI_VECTOR_CORE", "4096,1024;4096,1024", "FLOAT;FLOAT", "ND;ND")
    measured = dict(zip(columns, (*texts, '"4096,1024"', "FLOAT", "ND"), strict=False))
    measured |= {"Average Duration(us)": "9.000000", "MicroBench aic_mac_ratio": "0.7"}
    generated = measured | {"Input Shapes": '"1,1;1,1"', "Average Duration(us)": "0", "Note": "x"}
    (version / "Add.csv").write_bytes(csv_bytes(columns, [generated, measured]))
    (version / "Other.csv").write_bytes(b"untouched")
    (version / "op_mapping.yaml").write_bytes(b"untouched")
    result = parse_profile([profile], version)
    assert [(k.added, k.updated) for k in result.kernels.values()] == [(0, 1), (1, 0), (1, 0)]
    first, second = read_kernel_file(version / "Add.csv").rows
    assert {name: first[name] for name in columns} == generated | {"EP Size": ""}
    assert second["Average Duration(us)"] == "9.000000"
    assert second["MicroBench aic_mac_ratio"] == "0.7"
    assert second["Input Shapes"] == "4096,1024;4096,1024"
    assert second["Profiling Average Duration(us)"] == "15.000000"
    assert (version / "Other.csv").read_bytes() == b"untouched"
    assert (version / "op_mapping.yaml").read_bytes() == b"untouched"


def test_bad_input_leaves_the_tree_unchanged(tmp_path, profile, version):
    parse_profile([profile], version)
    before = snapshot(version)
    bad = write_profile(tmp_path / "bad", "K5", [ProfileRow(duration="99.000"), ProfileRow("../x")])
    with pytest.raises(BadInput, match=naming("kernel type")) as error:
        parse_profile([profile, bad], version)
    assert error.value.line == 3
    assert snapshot(version) == before


def test_bad_file_of_the_tree_leaves_all_others_unchanged(profile, version):
    version.mkdir(parents=True)
    (version / "Cast.csv").write_text("Input Shapes\n1,2\n")
    before = snapshot(version)
    with pytest.raises(BadInput) as error:
        parse_profile([profile], version)
    assert (error.value.path, error.value.line) == (version / "Cast.csv", 2)
    assert snapshot(version) == before


def test_bad_rows_are_skipped_on_request(tmp_path, version):
    path = write_profile(tmp_path / "p", "K5", [ProfileRow(), ProfileRow("../x")])
    result = parse_profile([path], version, skip_bad_rows=True)
    assert [row.line for row in result.report.skipped] == [3]
    assert [path.stem for path in result.kernels] == ["Add"]


def test_refused_file_leaves_no_thread_to_the_garbage_collector(tmp_path, version):
    before = threading.active_count()
    path = write_profile(tmp_path / "p", "K5", [ProfileRow(), ProfileRow("../x")])
    gc.disable()
    try:
        with pytest.raises(BadInput):
            parse_profile([path], version)
        assert threading.active_count() == before
    finally:
        gc.enable()


def test_grouping_by_shapes_makes_one_row_of_two_dtypes(tmp_path, version):
    path = write_profile(tmp_path / "p", "K5", [ProfileRow(), ProfileRow(dtypes="INT8;INT8")])
    [kernel] = parse_profile([path], version, group_by="shapes").kernels.values()
    assert kernel.added == 1
    [kernel] = parse_profile([path], version).kernels.values()
    assert kernel.added == 1  # the other one has a new identity


def test_file_in_place_of_the_version_folder_is_refused(tmp_path, profile):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(BadInput, match=naming(f"{path}:")):
        parse_profile([profile], path)


def test_folder_in_place_of_a_file_is_refused_in_one_line(profile, version):
    (version / "Add.csv").mkdir(parents=True)
    with pytest.raises(BadInput, match=naming(f"{version / 'Add.csv'}:")):
        parse_profile([profile], version)


def test_tree_has_the_cases_of_its_profile(profile, version):
    parse_profile([profile], version)
    records = read_profile([profile]).records
    assert [r.case_id for r in read_tree(version).records] == [r.case_id for r in records]


def test_launches_on_the_ai_cpu_have_a_separate_row(tmp_path, version):
    rows = [
        ProfileRow(duration="10.000"),
        ProfileRow(core="AI_CPU", duration="900.000"),
        ProfileRow(core="MIX_AIV"),
    ]
    path = write_profile(tmp_path / "both", "K5", rows)
    parse_profile([path], version)
    first, second = read_kernel_file(version / "Add.csv").rows
    assert [row["Accelerator Core"] for row in (first, second)] == ["AI_VECTOR_CORE", "AI_CPU"]
    assert second["Profiling Average Duration(us)"] == "900.000000"
    again = parse_profile([path], version)
    assert [(k.added, k.unchanged) for k in again.kernels.values()] == [(0, 2)]


def test_consumers_read_a_tree_of_a_profile_with_unknown_inputs(tmp_path, version):
    both = write_profile(
        tmp_path / "both", "K5", [ProfileRow(), unknown_inputs("Add"), ProfileRow("Cast")]
    )
    parse_profile([both], version)
    assert set(Consumer(version).everything()) == {"Add", "Cast"}
    assert len(Consumer(version).durations("Add")) == 1
    (row,) = read_kernel_file(version / "unknown_inputs" / "Add.csv").rows
    assert row["Profiling Average Duration(us)"]


def test_rows_of_unknown_inputs_are_moved_out_of_the_kernel_file(profile, version):
    parse_profile([profile], version)
    path = version / "Add.csv"
    file = read_kernel_file(path)
    stray = {**file.rows[0], "Input Shapes": "N/A", "Note": "mine"}
    path.write_bytes(csv_bytes((*file.columns, "Note"), [stray, *file.rows]))
    with pytest.raises(ValueError, match="nan"):
        Consumer(version).durations("Add")
    parse_profile([profile], version)
    assert len(Consumer(version).durations("Add")) == 1
    (moved,) = read_kernel_file(version / "unknown_inputs" / "Add.csv").rows
    assert moved == stray
    before = snapshot(version)
    parse_profile([profile], version)
    assert snapshot(version) == before


def test_tree_supplies_attributes_and_durations_but_no_other_numbers(version):
    version.mkdir(parents=True)
    columns = (*BASE_CELLS, "Average Duration(us)", "MicroBench vec_ratio", "EP Size")
    texts = ("", "", '"8"', "FLOAT", "ND", '"8"', "FLOAT", "ND", "4.5", "0.5", "16")
    row = dict(zip(columns, texts, strict=True))
    (version / "Add.csv").write_bytes(csv_bytes(columns, [row, row]))
    (version / "hcom_allReduce_.csv").write_text("message_bytes\n1\n")
    (record,) = read_tree(version).records
    assert record.extra == {"Average Duration(us)": "4.5", "EP Size": "16"}
    assert record.case.attribute("EP Size") == "16"


def test_rows_of_an_earlier_case_of_a_tree_are_counted(version):
    version.mkdir(parents=True)
    columns = (*BASE_CELLS, "Average Duration(us)", "EP Size")
    texts = ("", "AI_VECTOR_CORE", '"8"', "FLOAT", "ND", '"8"', "FLOAT", "ND", "4.5", "16")
    row = dict(zip(columns, texts, strict=True))
    rows = [
        *(row, {**row, "Average Duration(us)": "5.5"}, {**row, "Accelerator Core": "MIX_AIV"}),
        *({**row, "Accelerator Core": "MIX_AIV"}, {**row, "EP Size": "32"}),
    ]
    (version / "Add.csv").write_bytes(csv_bytes(columns, rows))
    tree = read_tree(version)
    assert len(tree.records) == 2  # another EP Size is another case
    core = ("Accelerator Core",)
    assert tree.repeated_rows == {("Average Duration(us)",): 1, core: 2}
    assert names(tree.repeated_rows_note(), 3, 1, 2, "Accelerator Core", "Average Duration(us)")
    rows = [row, {**row, "Input Shapes": "8", "Average Duration(us)": "4.500000"}]
    (version / "Add.csv").write_bytes(csv_bytes(columns, rows))
    assert read_tree(version).repeated_rows == {(): 1}
    rows = [{**row, "Average Duration(us)": ""}, row]
    (version / "Add.csv").write_bytes(csv_bytes(columns, rows))
    (record,) = read_tree(version).records
    assert record.extra["Average Duration(us)"] == "4.5"  # which `missing-only` excludes
    (version / "Add.csv").write_bytes(csv_bytes(columns, [row]))
    assert read_tree(version).repeated_rows_note() == ""


@pytest.mark.parametrize("make", [True, False])
def test_a_folder_without_a_tree_is_refused(version, make):
    if make:
        version.mkdir(parents=True)
    with pytest.raises(BadInput):
        read_tree(version)


def test_the_real_training_run_becomes_a_tree(real_profiles, version):
    source = real_profiles / "train_cann8.3rc1_rank0_ascend_pt"
    result = parse_profile([source], version)
    assert sum(kernel.added for kernel in result.kernels.values()) == 109
    assert len(result.kernels) == 35
    assert [path.name for path in (version / "unknown_inputs").iterdir()] == ["MemSet.csv"]
    adamw = read_kernel_file(version / "ApplyAdamWV2.csv")
    assert all(row["Output Shapes"] == "N/A" for row in adamw.rows)
    ids = {record.case_id for record in read_tree(version).records}
    assert ids == {record.case_id for record in read_profile([source]).records}
    assert len(Consumer(version).kernel_types()) == 34 and Consumer(version).everything()
    again = parse_profile([source], version)
    assert sum(kernel.unchanged for kernel in again.kernels.values()) == 109


def attention_row(duration="10.000"):
    shapes = '"8192,16,128;1171,128,512;1171,128,512;;;5;;;;;;;;;5,512;;;;;;;;;;;;;;;;"'
    cells = ("DT_BF16;DT_BF16;DT_BF16", "ND;ND;ND", '"8192,16,128;"', "DT_BF16", "ND", "MIX_AIC")
    return ProfileRow("FusedInferAttentionScore", shapes, *cells, duration=duration)


def test_fused_attention_has_the_sixteen_columns_that_describe_its_run(tmp_path, version):
    parse_profile([write_profile(tmp_path / "profile_a", "K5", [attention_row()])], version)
    path = version / "FusedInferAttentionScore.csv"
    file = read_kernel_file(path)
    assert file.columns == (*PARSER_COLUMNS, *ATTENTION_COLUMNS)
    (row,) = file.rows
    reported = {name: row[name] for name in ATTENTION_COLUMNS if row[name]}
    assert reported == {
        "Runtime source_profile": "profile_a",
        "Runtime actual_seq_lengths_shape": "5",
        "Runtime block_table_shape": "5,512",
        "Runtime metadata_completeness": "profile_shapes_only",
    }
    before = path.read_bytes()
    result = parse_profile([tmp_path / "profile_a"], version)
    assert [(k.added, k.updated, k.unchanged) for k in result.kernels.values()] == [(0, 0, 1)]
    assert path.read_bytes() == before


def test_cell_of_a_tree_never_begins_like_a_formula(tmp_path, version):
    data = profile_bytes("K5", [ProfileRow(), collective("1.000", "30.000")]).decode()
    header, *rows = csv.reader(io.StringIO(data, newline=""))
    with (tmp_path / "kernel_details.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([header, *rows])
        for number in range(len(header)):
            for text in ("=1+1", "@SUM(A1)", "=hcom_allReduce__=A1_1_1"):
                writer.writerows([*row[:number], text, *row[number + 1 :]] for row in rows)
    parse_profile([tmp_path], version, skip_bad_rows=True)
    tables = list(version.rglob("*.csv"))
    assert {table.name for table in tables} >= {"Add.csv", "communication.csv"}
    for table in tables:
        for row in csv.reader(io.StringIO(table.read_text())):
            assert not any(map(is_formula, row)), (table.name, row)
