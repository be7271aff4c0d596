"""Launches that a profiler recorded earlier are assigned to their rows, and only to those."""

import csv
from collections import defaultdict
from statistics import fmean

import pytest

from collector.codec.errors import BadInput
from collector.database.layout import DATABASE_COLUMNS, PARSER_COLUMNS, kernel_files
from collector.database.tree import read_kernel_file
from collector.model.vocabulary import BASE_CELLS
from collector.singlehost.from_profile import microbench_from_profile
from collector.singlehost.parse import parse_profile
from collector.singlehost.reports import Update
from tests.fixtures.profiles.variants import ProfileRow, collective, unknown_inputs, write_profile
from tests.unit.collector.database.consumer import Consumer
from tests.unit.collector.naming import names, naming
from tests.unit.collector.singlehost.conftest import matmul

pytestmark = pytest.mark.fast

AVERAGE = "Average Duration(us)"


@pytest.fixture
def profile(tmp_path):
    def write(*rows, layout="O3", name="PROF_1"):
        folder = tmp_path / name / "mindstudio_profiler_output"
        return write_profile(folder, layout, rows).parent.parent

    return write


def mat(kernel, shapes, out, duration="10.000", dtypes="DT_BF16;DT_BF16", formats="ND;ND"):
    texts = (f'"{shapes}"', dtypes, formats, f'"{out}"', "DT_BF16", "ND", "AI_CORE", "dynamic")
    return ProfileRow(kernel, *texts, duration)


def test_row_gets_the_mean_of_all_its_launches(tree, profile):
    tree.write("Add", {AVERAGE: "99.0"})
    durations = ("2.000", "4.000", "90.000")
    source = profile(*(ProfileRow(duration=d, other={"aiv_vec_ratio": "0.5"}) for d in durations))
    result = microbench_from_profile(tree.folder, [source])
    (row,) = tree.rows("Add")
    assert row[AVERAGE] == "32.000000"
    assert row["MicroBench aiv_vec_ratio"] == "0.500000"
    (written,) = result.written
    assert (written.launches, written.ran, written.old_us) == (3, "", 99.0)


def test_counters_of_an_earlier_microbenchmark_are_cleared_with_a_new_duration(tree, profile):
    tree.write("Add", {AVERAGE: "9.0", "MicroBench aic_mac_ratio": "0.7", "Note": "kept"})
    microbench_from_profile(tree.folder, [profile(ProfileRow(duration="3.000"))])
    (row,) = tree.rows("Add")
    assert (row["MicroBench aic_mac_ratio"], row[AVERAGE], row["Note"]) == ("", "3.000000", "kept")


def test_same_shapes_in_another_dtype_are_another_row(tree, profile):
    tree.write("Add", {}, {"Input Data Types": "DT_BF16;DT_BF16", "Output Data Types": "DT_BF16"})
    result = microbench_from_profile(tree.folder, [profile(ProfileRow(duration="3.000"))])
    assert tree.durations("Add") == ["3.000000", ""]
    assert [case.inputs[0].dtype for case in result.alone] == ["DT_BF16"]


def test_row_with_fewer_attributes_than_the_profile_is_found_by_its_signature(tree, profile):
    tree.write("Add", {"OP State": "", "Output Formats": ""})
    result = microbench_from_profile(tree.folder, [profile(ProfileRow(duration="3.000"))])
    assert tree.durations("Add") == ["3.000000"]
    assert names(result.written[0].ran, "signature")


def test_row_with_exact_launches_uses_no_others(tree, profile):
    row = {"Input Shapes": '"4,768;2"', "Output Shapes": '"2,768"', "Input Data Types": "FLOAT"}
    tree.write("Slice", row)
    cells = ("ND;ND", '"2,768"', "FLOAT", "ND", "AI_VECTOR_CORE", "dynamic")
    launches = [ProfileRow("Slice", f'"4,768;{n}"', "FLOAT;", *cells, f"{n}.000") for n in (3, 8)]
    exact = [ProfileRow("Slice", '"4,768;2"', "FLOAT", *cells, "5.000")]
    result = microbench_from_profile(tree.folder, [profile(*launches)])
    assert tree.durations("Slice") == ["5.500000"]
    assert result.written[0].launches == 2
    microbench_from_profile(tree.folder, [profile(*launches, *exact)])
    assert tree.durations("Slice")[0] == "5.000000"


def test_rows_distinguished_by_attributes_are_not_filled_by_a_profile_without_them(tree, profile):
    rows = [{"Runtime num_heads": heads} for heads in ("8", "16")]
    tree.write("FusedInferAttentionScore", *rows)
    source = profile(ProfileRow("FusedInferAttentionScore", duration="3.000"))
    result = microbench_from_profile(tree.folder, [source])
    assert tree.durations("FusedInferAttentionScore") == ["", ""]
    (left,) = result.leftover
    assert names(left.fate, "2 rows")


def test_duplicate_rows_are_updated_alike_and_reported(tree, profile):
    tree.write("Add", {}, {"Input Shapes": "4096,1024;4096,1024"})
    result = microbench_from_profile(tree.folder, [profile(ProfileRow(duration="3.000"))])
    assert tree.durations("Add") == ["3.000000"] * 2
    assert [count for _, count in result.duplicates] == [2]


def test_matmul_row_uses_and_reports_another_kernel_of_its_family(tree, profile):
    tree.write("MatMulCommon", matmul("32,128;128,64", "32,64"))
    result = microbench_from_profile(
        tree.folder, [profile(mat("MatMulV3", "32,128;64,128", "32,64", "7.000"))]
    )
    assert tree.durations("MatMulCommon") == ["7.000000"]
    assert names(result.written[0].ran, "MatMulV3", "32,128;64,128 -> 32,64")
    assert (tree.files(), result.leftover) == (["MatMulCommon.csv"], ())


def test_own_launches_of_a_matmul_precede_those_of_its_family(tree, profile):
    tree.write("MatMulV2", matmul("32,128;128,64", "32,64"))
    source = profile(
        mat("MatMulV3", "32,128;128,64", "32,64", "20.000"),
        mat("MatMulV2", "32,128;128,64", "32,64", "10.000"),
    )
    result = microbench_from_profile(tree.folder, [source])
    assert tree.durations("MatMulV2") == ["10.000000"]
    assert [left.case.kernel_type for left in result.leftover] == ["MatMulV3"]


def test_launches_of_the_family_add_no_row(tree, profile):
    tree.write("MatMulV2", matmul("32,128;128,64", "32,64"))
    source = profile(mat("MatMulV3", "8,128;128,64", "8,64"))
    result = microbench_from_profile(tree.folder, [source])
    assert (tree.files(), tree.durations("MatMulV2")) == (["MatMulV2.csv"], [""])
    assert names(result.leftover[0].fate, "MatMulV3.csv")


def test_launches_without_a_row_are_added_only_to_existing_files(tree, profile):
    tree.write("Add", {})
    source = profile(ProfileRow(shapes='"8,8;8,8"', out_shapes='"8,8"'), ProfileRow("Mul"))
    result = microbench_from_profile(tree.folder, [source])
    assert tree.files() == ["Add.csv"]
    assert tree.durations("Add") == ["", "12.500000"]
    assert [row.is_new for row in result.written] == [True]
    assert [names(left.fate, "Mul.csv") for left in result.leftover] == [True]


def test_missing_only_fills_rows_without_a_duration_and_adds_nothing(tree, profile):
    measured = {AVERAGE: "5.0"}
    profiled = {"Input Shapes": '"1;1"', "Profiling Average Duration(us)": "6.0"}
    missing = {"Input Shapes": '"2;2"', AVERAGE: "0"}
    tree.write("Add", measured, profiled, missing)
    source = profile(
        *(ProfileRow(shapes=s) for s in ('"4096,1024;4096,1024"', '"1;1"', '"2;2"', '"3;3"'))
    )
    result = microbench_from_profile(tree.folder, [source], update=Update.MISSING_ONLY)
    assert tree.durations("Add") == ["5.0", "", "12.500000"]
    assert (len(result.written), result.kept) == (1, 2)
    assert names(result.leftover[0].fate, Update.MISSING_ONLY)


def test_empty_tree_gets_a_complete_file_for_each_kernel(tree, profile):
    source = profile(
        ProfileRow(),
        unknown_inputs("Custom", duration="7.840"),
        collective("1.000", "30.000"),
        ProfileRow("reduce_scatterAicpuKernel", core="AI_CPU"),
    )
    result = microbench_from_profile(tree.folder, [source])
    assert tree.files() == ["Add.csv", "unknown_inputs/Custom.csv"]
    assert list(Consumer(tree.folder).everything()) == ["Add"]
    assert read_kernel_file(tree.folder / "Add.csv").columns == DATABASE_COLUMNS
    assert tree.durations("unknown_inputs/Custom") == ["7.840000"]
    assert tree.rows("Add")[0]["Profiling Average Duration(us)"] == ""
    assert [names(left.fate, "AICPU") for left in result.leftover] == [True]


def test_measured_columns_are_inserted_before_those_of_the_profile(tree, profile):
    parse_profile([profile(ProfileRow(duration="8.000"), name="serving")], tree.folder)
    assert read_kernel_file(tree.folder / "Add.csv").columns == PARSER_COLUMNS
    microbench_from_profile(
        tree.folder, [profile(ProfileRow(duration="4.000", other={"aic_mac_ratio": "0.5"}))]
    )
    columns = read_kernel_file(tree.folder / "Add.csv").columns
    assert columns.index(AVERAGE) == len(BASE_CELLS)
    mine, theirs = "MicroBench aic_mac_ratio", "Profiling Average aic_mac_ratio"
    assert columns.index(mine) == columns.index(theirs) - 1


def test_old_columns_are_migrated(tree, profile):
    legacy = {"MicroBench Duration(us)": "5.0", "MicroBench Task Duration(us)": "6.0"}
    other = {"Input Shapes": '"1;1"', **legacy}
    tree.write("Add", other, {}, columns=BASE_CELLS)
    microbench_from_profile(tree.folder, [profile(ProfileRow(duration="3.000"))], prune_empty=True)
    assert tree.durations("Add") == ["5.0", "3.000000"]
    assert "MicroBench Task Duration(us)" not in tree.rows("Add")[0]


def test_rows_without_a_duration_are_removed_only_on_request(tree, profile):
    tree.write("Add", {}, {"Input Shapes": '"1;1"', AVERAGE: "N/A"})
    source = profile(ProfileRow(duration="3.000"))
    assert microbench_from_profile(tree.folder, [source]).deleted == ()
    result = microbench_from_profile(tree.folder, [source], prune_empty=True)
    assert tree.durations("Add") == ["3.000000"]
    ((kernel, cells),) = result.deleted
    assert (kernel, cells["Input Shapes"]) == ("Add", '"1;1"')


def test_only_a_selected_kernel_is_written_and_an_unknown_one_refused(tree, profile):
    tree.write("Add", {})
    tree.write("Mul", {})
    source = profile(ProfileRow(), ProfileRow("Mul"))
    microbench_from_profile(tree.folder, [source], kernels=("Mul",))
    assert (tree.durations("Add"), tree.durations("Mul")) == ([""], ["12.500000"])
    with pytest.raises(BadInput, match=naming("'Mull'", "'Mul'", "Add, Mul")):
        microbench_from_profile(tree.folder, [source], kernels=("Mull",))


def test_nothing_is_written_if_a_file_of_the_tree_is_invalid(tree, profile):
    tree.write("Add", {})
    (tree.folder / "Mul.csv").write_text("version https://git-lfs.github.com/spec/v1\noid x\n")
    with pytest.raises(BadInput, match="git lfs pull"):
        microbench_from_profile(tree.folder, [profile(ProfileRow())])
    assert tree.durations("Add") == [""]


def test_row_uses_no_launches_of_the_ai_cpu(tree, profile):
    tree.write("Add", {})
    source = profile(ProfileRow(duration="10.000"), ProfileRow(core="AI_CPU", duration="900.000"))
    microbench_from_profile(tree.folder, [source])
    assert tree.durations("Add") == ["10.000000", "900.000000"]
    assert [row["Accelerator Core"] for row in tree.rows("Add")] == ["AI_VECTOR_CORE", "AI_CPU"]
    alone = profile(ProfileRow(core="AI_CPU", state="N/A", duration="800.000"), name="alone")
    result = microbench_from_profile(tree.folder, [alone], update=Update.ALL)
    assert [w.mean_us for w in result.written] == [800.0]
    assert tree.durations("Add") == ["10.000000", "800.000000"]


def test_row_of_unknown_inputs_is_moved_to_a_separate_folder(tree, profile):
    unknown = {"Input Shapes": "N/A", "Input Data Types": "N/A", "Input Formats": "N/A"}
    unknown |= {"Output Shapes": "N/A", "Output Data Types": "N/A", "Output Formats": "N/A"}
    tree.write("Add", {AVERAGE: "3.0"}, {**unknown, "Note": "mine"}, {"Input Shapes": '"1;1"'})
    source = profile(unknown_inputs("Add", duration="7.000"))
    result = microbench_from_profile(tree.folder, [source], update=Update.MISSING_ONLY)
    ((written, cells),) = (
        (w.place.file, tree.rows("unknown_inputs/Add")[w.place.at]) for w in result.written
    )
    assert (written, cells[AVERAGE], cells["Note"]) == (
        "unknown_inputs/Add.csv",
        "7.000000",
        "mine",
    )
    assert len(tree.rows("Add")) == 2
    assert Consumer(tree.folder).durations("Add") == {((4096, 1024), (4096, 1024)): 3.0}


def test_a_second_run_changes_nothing(tree, profile):
    source = profile(ProfileRow(), ProfileRow("Mul"))
    microbench_from_profile(tree.folder, [source])
    before = {path: path.stat().st_mtime_ns for path in tree.folder.iterdir()}
    result = microbench_from_profile(tree.folder, [source])
    assert [row.has_changed for row in result.written] == [False, False]
    assert {path: path.stat().st_mtime_ns for path in tree.folder.iterdir()} == before


def spreadsheet(path):
    """Return mean duration and number of launches by type and tensors, from the raw file."""
    durations = defaultdict(list)
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file):
            tensors = tuple(row[name] for name in BASE_CELLS[2:])
            durations[row["OP Type"], tensors].append(float(row["Task Duration(us)"]))
    return {key: (fmean(values), len(values)) for key, values in durations.items()}


@pytest.mark.parametrize("run", ["inference_cann9.1_ascend_pt", "op_cann8.5.2_PROF"])
@pytest.mark.parametrize("is_parsed", [False, True], ids=["empty tree", "parsed tree"])
def test_real_profiles_give_the_means_of_a_spreadsheet(real_profiles, tree, run, is_parsed):
    (summary,) = (real_profiles / run).rglob("op_summary_*.csv")
    if is_parsed:
        parse_profile([real_profiles / run], tree.folder)
    result = microbench_from_profile(tree.folder, [summary.parent.parent])
    expected = spreadsheet(summary)
    if not is_parsed or run.startswith("inference"):
        found = {
            (path.stem, tuple(row[name] for name in BASE_CELLS[2:])): row[AVERAGE]
            for path in kernel_files(tree.folder)
            for row in read_kernel_file(path).rows
        }
        read = {path.stem for path in tree.folder.glob("*.csv")}
        assert set(Consumer(tree.folder).everything()) == read
        assert found == {key: f"{mean:.6f}" for key, (mean, _) in expected.items()}
    assert sorted(w.launches for w in result.written) == sorted(n for _, n in expected.values())
