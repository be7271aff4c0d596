"""Unusual but valid cells, communication rows, and which files below a folder are read."""

import json
import shutil
from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.ops import registry
from collector.ops.refusals import refusal, refusal_of_device
from collector.profiles.discovery import find_profiles
from collector.profiles.kernel_details import read_profile
from collector.profiles.run_files import Repeated
from tests.fixtures.profiles.variants import (
    ProfileRow,
    collective,
    profile_bytes,
    unknown_inputs,
    write_profile,
)
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast


def read(tmp_path, rows, **options):
    return read_profile([write_profile(tmp_path, "K5", rows)], **options)


def test_empty_slots_are_preserved_and_distinguish_cases(tmp_path):
    rows = [
        ProfileRow(shapes='"4096;"', dtypes="FLOAT;FLOAT", formats="ND;ND"),
        ProfileRow(shapes='"4096;"', dtypes="FLOAT;INT32", formats="ND;ND"),
        ProfileRow(shapes='"4096;"', dtypes="FLOAT;INT64", formats="ND;ND"),
    ]
    profile = read(tmp_path, rows)
    assert [len(record.case.inputs) for record in profile.records] == [2, 2, 2]
    assert len({record.case_id for record in profile.records}) == 3


def test_a_scalar_is_an_empty_shape_in_quotes(tmp_path):
    rows = [ProfileRow(shapes='""', dtypes="FLOAT", formats="ND", out_shapes='";;"')]
    (record,) = read(tmp_path, rows).records
    assert record.cells["Input Shapes"] == '""'
    assert record.case.inputs[0].shape is None


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "static"},
        {"dtypes": "FLOAT;DT_BF16"},
        {"formats": "ND;FRACTAL_NZ"},
        {"out_dtypes": "DT_BF16"},
        {"out_formats": "NC1HWC0:1"},
    ],
)
def test_attributes_of_the_kernel_distinguish_cases(tmp_path, changes):
    rows = [ProfileRow(), ProfileRow(**changes)]
    assert len(read(tmp_path, rows).records) == 2
    assert len(read(tmp_path, rows, group_by="shapes").records) == 1


@pytest.mark.parametrize(
    ("name", "state", "launched_by"),
    [
        ("Add_17", "static", "graph"),
        ("aclnnAdd_AddAiCore_Add", "static", None),  # compiled for its shapes by itself
        ("Add", "static", None),  # the naming of custom operators
        ("N/A", "static", None),
        ("Add_17", "dynamic", None),
    ],
)
def test_kernel_of_a_graph_is_recognised_by_its_name(tmp_path, name, state, launched_by):
    rows = [ProfileRow(), ProfileRow(name=name, state=state)]
    *_, last = read(tmp_path, rows).records
    assert last.case.attribute("Runtime launched_by") == launched_by
    assert last.cells["OP State"] == state


def test_grouping_by_shapes_uses_the_cells_of_the_first_row(tmp_path):
    rows = [ProfileRow(duration="2.000"), ProfileRow(dtypes="INT8;INT8", duration="4.000")]
    (record,) = read(tmp_path, rows, group_by="shapes").records
    assert record.cells["Input Data Types"] == "FLOAT;FLOAT"
    assert (record.profile.count, record.profile.mean_us) == (2, 3.0)


def test_core_and_spelling_do_not_distinguish_cases(tmp_path):
    rows = [ProfileRow(), ProfileRow(core="MIX_AIV"), ProfileRow(shapes="4096,1024;4096,1024")]
    (record,) = read(tmp_path, rows).records
    assert record.profile.count == 3
    assert record.cells["Accelerator Core"] == "AI_VECTOR_CORE"
    assert record.cells["Input Shapes"] == '"4096,1024;4096,1024"'


def test_unknown_output_with_known_inputs_is_a_case(tmp_path):
    rows = [ProfileRow("ApplyAdamWV2", out_shapes="N/A", out_dtypes="N/A", out_formats="N/A")] * 2
    profile = read(tmp_path, rows)
    (record,) = profile.records
    assert record.case.inputs is not None
    assert record.case.outputs is None
    assert profile.report.unknown_input_rows == ()


def test_renamed_compiled_variants_are_one_kernel_type(tmp_path):
    rows = [ProfileRow("muls_add_kernel_1"), ProfileRow("muls_add_kernel")]
    (record,) = read(tmp_path, rows).records
    assert record.case.kernel_type == "muls_add_kernel"


@pytest.mark.parametrize("line_end", ["\r\n", "\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_a_byte_order_mark_do_not_matter(tmp_path, line_end, mark):
    path = tmp_path / "kernel_details.csv"
    path.write_bytes(mark + profile_bytes("K7", [ProfileRow(), ProfileRow()], line_end=line_end))
    assert read_profile([path]).records[0].profile.count == 2


def test_missing_last_line_end_and_blank_lines_are_accepted(tmp_path):
    path = tmp_path / "kernel_details.csv"
    path.write_bytes(
        b"\n" + profile_bytes("K5", [ProfileRow(), ProfileRow()], line_end="\n") + b"\n\n"
    )
    assert read_profile([path]).report.rows == 2
    path.write_bytes(profile_bytes("K5", [ProfileRow(), ProfileRow()]).rstrip())
    assert read_profile([path]).report.rows == 2


def test_multiline_cells_and_other_alphabets_are_read(tmp_path):
    rows = [ProfileRow(name='first\r\nsecond, "third"'), ProfileRow(name="算子")] * 3
    profile = read(tmp_path, rows)
    assert profile.report.rows == 6
    assert profile.report.skipped == ()


def test_numbers_with_blanks_and_tabs_around_them(tmp_path):
    rows = [ProfileRow(duration=" 12.5\t", other={"aic_mac_ratio": "0.5 ", "aiv_vec_ratio": "NA"})]
    (record,) = read(tmp_path, rows).records
    assert record.profile.mean_us == 12.5
    assert record.profile.counters == (("aic_mac_ratio", 0.5),)


def test_collectives_are_summed_up_and_are_not_cases(tmp_path):
    rows = [ProfileRow(), collective("1.000", "10.000"), collective("20.000", "30.000", number=2)]
    profile = read(tmp_path, rows)
    assert [record.kernel_type for record in profile.records] == ["Add"]
    (entry,) = profile.communication
    assert (entry.kernel_type, entry.group, entry.core) == (
        "hcom_allReduce_",
        "170",
        "COMMUNICATION",
    )
    assert (entry.count, entry.total_us, entry.mean_us) == (2, 40.0, 20.0)
    assert (entry.min_us, entry.median_us, entry.max_us, entry.std_us) == (10.0, 20.0, 30.0, 10.0)


@pytest.mark.parametrize(
    "row",
    [
        unknown_inputs("allreduce", core="HCCL"),
        unknown_inputs("broadcast", core="COMMUNICATION"),
        unknown_inputs("hcom_send_", core="AI_CPU"),
        ProfileRow("hcom_allGather_"),
    ],
)
def test_collective_is_recognised_by_its_core_or_type(tmp_path, row):
    report = read(tmp_path, [ProfileRow(), row]).report
    assert (report.compute_rows, report.communication_rows) == (1, 1)
    assert report.unknown_input_rows == ()


def test_a_collective_on_two_streams_counts_once(tmp_path):
    rows = [
        collective("1.000\t", "10.000"),
        collective("1.000\t", "10.000", stream="7", number=9),
        collective("20.000\t", "10.000", stream="7"),
        collective("30.000\t", "10.000"),
        collective("30.000\t", "11.000", stream="7"),
    ]
    profile = read(tmp_path, rows)
    assert profile.report.duplicates_dropped == 1
    assert profile.report.communication_rows == 5
    assert sum(entry.count for entry in profile.communication) == 4


def test_the_same_collective_of_two_ranks_counts_twice(tmp_path):
    for rank in ("0", "1"):
        row = collective("1.000\t", "10.000", stream=rank if rank == "1" else "N/A")
        rows = [replace(row, device=rank) for row in (ProfileRow(), row)]
        write_profile(tmp_path / rank, "K5", rows)
    report = read_profile([tmp_path]).report
    assert (report.communication_rows, report.duplicates_dropped) == (2, 0)


def test_a_folder_is_searched_and_each_file_is_read_once(tmp_path):
    first = write_profile(tmp_path / "a" / "b", "K5", [ProfileRow()])
    second = write_profile(tmp_path / "c", "O2", [ProfileRow()])
    (tmp_path / "c" / "._kernel_details.csv").write_bytes(b"\0")
    (tmp_path / "c" / "op_statistic.csv").write_text("OP Type\n")
    ranked = first.with_name("kernel_details_rank1.csv")
    ranked.write_bytes(first.read_bytes())
    assert find_profiles([tmp_path, first, tmp_path / "c"]) == (first, ranked, second)


def test_kernel_details_precede_the_op_summary_of_the_same_run(tmp_path):
    run = tmp_path / "host_1_ascend_pt"
    details = write_profile(run / "ASCEND_PROFILER_OUTPUT", "K6", [ProfileRow()])
    write_profile(run / "PROF_1" / "mindstudio_profiler_output", "O2", [ProfileRow()])
    alone = write_profile(tmp_path / "PROF_2" / "mindstudio_profiler_output", "O2", [ProfileRow()])
    assert find_profiles([tmp_path]) == (alone, details)
    report = read_profile([tmp_path]).report
    assert (report.rows, report.files) == (1, (details,))
    assert report.repeated == (Repeated(alone, details, 1),)


def launches(count, first=0, **more):
    """Return rows that start one after another, each a microsecond later."""
    return [
        ProfileRow(start=f"17642468770{at:05d}.960\t", duration=f"{5 + at % 3}.500", **more)
        for at in range(first, first + count)
    ]


@pytest.mark.parametrize("again", ["K5", "K6", "O2"])
def test_one_run_exported_twice_counts_once(tmp_path, again):
    rows = [*launches(40), *launches(5, first=100, core="AI_CPU")]
    once = write_profile(tmp_path / "a", "K5", rows)
    alone = read_profile([once])
    twice = write_profile(tmp_path / "copy" / "b", again, rows)
    profile = read_profile([tmp_path])
    assert [(r.case_id, r.profile.count) for r in profile.records] == [
        (r.case_id, r.profile.count) for r in alone.records
    ]
    assert profile.report.rows == 45 and len(profile.report.files) == 1
    (repeated,) = profile.report.repeated
    assert {repeated.path, repeated.of} == {once, twice} and repeated.rows == 45


def test_rows_of_only_the_second_export_are_kept(tmp_path):
    rows = launches(40)
    first = write_profile(tmp_path / "a", "K5", rows[:30])
    second = write_profile(tmp_path / "b", "K5", rows[10:])
    report = read_profile([tmp_path]).report
    assert (report.rows, report.files) == (40, (first, second))
    assert report.repeated == (Repeated(second, first, 20),)


def test_ranks_of_one_job_that_agree_in_some_launches_are_two_runs(tmp_path):
    write_profile(tmp_path / "a", "K5", launches(40))
    write_profile(tmp_path / "b", "K5", [*launches(10), *launches(30, first=500)])
    write_profile(tmp_path / "c", "K5", launches(40, device="1"))
    report = read_profile([tmp_path]).report
    assert (report.rows, report.repeated) == (120, ())


def test_a_copied_file_without_starts_counts_once(tmp_path):
    rows = [ProfileRow(duration="5.000"), ProfileRow(duration="6.000")]
    data = profile_bytes("K5", rows).replace(b"Start Time(us)", b"Something else")
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        end = b"" if name < "c" else b"\r\n"
        (tmp_path / name / "kernel_details.csv").write_bytes(data + end)
    report = read_profile([tmp_path]).report
    assert (report.rows, [r.path.parent.name for r in report.repeated]) == (4, ["b"])


def test_op_summary_of_a_real_run_adds_nothing_to_its_kernel_details(real_profiles, tmp_path):
    run = real_profiles / "inference_cann9.1_ascend_pt"
    (summary,) = run.rglob("op_summary_*.csv")
    (details,) = run.rglob("kernel_details.csv")
    shutil.copy(summary, tmp_path / "op_summary_1.csv")
    shutil.copy(details, tmp_path / "kernel_details.csv")
    report = read_profile([tmp_path]).report
    (repeated,) = report.repeated
    assert repeated.path.name == "op_summary_1.csv"
    assert report.rows == read_profile([details]).report.rows + (
        read_profile([summary]).report.rows - repeated.rows
    )
    assert repeated.rows >= 0.9 * read_profile([summary]).report.rows


def test_op_summary_without_kernel_details_is_read(tmp_path):
    run = tmp_path / "host_1_ascend_pt"
    path = write_profile(run / "PROF_1" / "mindstudio_profiler_output", "O2", [ProfileRow()])
    assert find_profiles([run]) == (path,)


def test_file_may_have_any_name(tmp_path):
    path = tmp_path / "a003.csv"
    path.write_bytes(profile_bytes("O2", [ProfileRow()]))
    assert read_profile([path]).report.files == (path,)


def test_missing_profile_is_reported_with_the_expected_names(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(BadInput, match=naming("kernel_details*.csv", "op_summary_*.csv")):
            find_profiles([path])


def test_software_versions_of_a_run_are_read(tmp_path):
    run = tmp_path / "host_1_ascend_pt"
    write_profile(run / "ASCEND_PROFILER_OUTPUT", "K6", [ProfileRow()])
    info = {"torch_npu_version": "2.7.1", "cann_version": "8.3.RC1", "rank_id": 0}
    (run / "profiler_info_0.json").write_text(json.dumps(info))
    (software,) = read_profile([run]).report.software
    assert (software.folder, software.torch_npu, software.cann) == (run, "2.7.1", "8.3.RC1")


@pytest.mark.parametrize("text", ["{", "[]", None])
def test_run_without_software_versions_is_read(tmp_path, text):
    run = tmp_path / "host_1_ascend_pt"
    write_profile(run / "ASCEND_PROFILER_OUTPUT", "K6", [ProfileRow()])
    if text is not None:
        (run / "profiler_info.json").write_text(text)
    assert read_profile([run]).report.software == ()


def test_launch_counts_once_if_one_export_lacks_its_device_or_start(tmp_path):
    rows = launches(20)
    no_start = [replace(row, start="N/A") if at in (3, 4) else row for at, row in enumerate(rows)]
    both_in_one = [*rows, *(replace(row, device="N/A") for row in rows)]
    variants = {
        "no device": (rows, [replace(row, device="") for row in rows]),
        "no start": (rows, no_start),
        "no start in either": (no_start, no_start[::-1]),
        "no device, no start": (no_start, [replace(row, device="") for row in rows]),
        "one file": (both_in_one,),
        "one file and another": (both_in_one, no_start),
    }
    found = {}
    for name, exports in variants.items():
        for at, export in enumerate(exports):
            write_profile(tmp_path / name / str(at), "O2", export)
        report = read_profile([tmp_path / name]).report
        found[name] = report.rows, sum(one.rows for one in report.repeated)
    assert found == {name: (20, sum(map(len, exports)) - 20) for name, exports in variants.items()}


def test_launches_without_a_start_are_matched_by_their_number(tmp_path):
    same = [replace(row, duration="5.500") for row in launches(6)]
    write_profile(tmp_path / "a", "O2", same[:5])
    write_profile(tmp_path / "b", "O2", [*same[:4], *[replace(same[5], start="N/A")] * 3])
    assert read_profile([tmp_path]).report.rows == 5 + 2


def test_equal_launches_of_two_devices_in_one_file_are_two(tmp_path):
    rows = [replace(row, device=device) for row in launches(4) for device in "01"]
    assert read(tmp_path, rows).report.rows == 8


def test_few_equal_rows_in_a_file_are_not_a_second_export(tmp_path):
    rows = launches(20)
    assert read(tmp_path, [*rows, *rows[:4]]).report.rows == 24


def test_identifiers_and_time_stamps_are_not_counters(tmp_path):
    path = write_profile(tmp_path, "O1", [ProfileRow(), ProfileRow(start="1764246877083399.960")])
    lines = path.read_text().replace("Start Time(us)", "Task Start Time").splitlines()
    more = ("Step ID,Thread Id,End Time(us),0x500", "7,4242,9.5,3", "8,4243,11.5,5")
    path.write_text("\n".join(f"{line},{cells}" for line, cells in zip(lines, more, strict=True)))
    profile = read_profile([path], with_contexts=True)  # which requires starts
    (record,) = profile.records
    assert dict(record.profile.counters) == {"0x500": 4.0}


def test_spellings_of_dtypes_and_formats_do_not_distinguish_cases(tmp_path):
    spellings = [
        {},
        {"formats": "FORMAT_ND;nd", "out_formats": "FORMAT_ND"},
        {"dtypes": "DT_FLOAT;float", "out_dtypes": "DT_FLOAT"},
    ]
    (record,) = read(tmp_path / "a", [ProfileRow(**more) for more in spellings]).records
    assert record.profile.count == 3
    assert record.cells["Input Formats"] == "ND;ND"  # the first spelling
    absent = [("DT_UNDEFINED", "NULL"), ("", ""), ("UNDEFINED", "N/A")]
    rows = [
        ProfileRow(shapes='"8;;8"', dtypes=f"FLOAT;{dtype};FLOAT", formats=f"ND;{fmt};ND")
        for dtype, fmt in absent
    ]
    (record,) = read(tmp_path / "b", rows).records
    assert record.profile.count == 3


def test_case_of_unknown_op_state_joins_the_only_known_one(tmp_path):
    known = launches(3, name="Add_17", state="static")
    rows = [*known, *launches(2, first=20), *launches(1, first=30, kernel="Mul", state="dynamic")]
    rows += [replace(row, shapes='"8;8"') for row in launches(2, first=50)]
    write_profile(tmp_path / "b", "K5", rows)
    # a release without the column, which is read first; Add may be static or dynamic
    others = [*launches(4, first=100), *launches(4, first=120, kernel="Mul")]
    write_profile(tmp_path / "a", "K1", others)
    found = {
        (one.kernel_type, one.case.op_state, one.case.inputs[0].shape): one.profile.count
        for one in read_profile([tmp_path]).records
    }
    assert found == {
        ("Add", "", (4096, 1024)): 4,
        ("Add", "static", (4096, 1024)): 3,
        ("Add", "dynamic", (4096, 1024)): 2,
        ("Add", "dynamic", (8,)): 2,
        ("Mul", "dynamic", (4096, 1024)): 5,
    }


def test_rows_of_ascend_950_are_read_and_refused_elsewhere_with_its_name(tmp_path):
    scale = "2048,112,2"
    rows = [
        ProfileRow(
            "DynamicMxQuant",
            *('"16,7168"', "DT_BF16", "ND", '"16,7168;16,112,2"'),
            *("FLOAT8_E4M3FN;FLOAT8_E8M0", "ND;ND"),
        ),
        ProfileRow(
            "QuantBatchMatmulV3",
            f'"16,7168;2048,7168;{scale};;;16,112,2"',
            "FLOAT4_E2M1;FLOAT4_E2M1;FLOAT8_E8M0;;;FLOAT8_E8M0",
            *("ND;ND;ND;;;ND", '"16,2048"', "DT_BF16", "ND"),
        ),
        ProfileRow(
            "MatMulV3",
            *('"16,7168;7168,2048"', "HIFLOAT8;HIFLOAT8", "ND;ND", '"16,2048"', "DT_BF16", "ND"),
        ),
    ]
    cases = [one.case for one in read_profile([write_profile(tmp_path, "K6", rows)]).records]
    assert [case.kernel_type for case in cases] == [one.kernel for one in rows]
    assert {case.inputs[0].dtype for case in cases} == {"DT_BF16", "FLOAT4_E2M1", "HIFLOAT8"}
    for case in cases:
        no = refusal(case, registry.find_operator, "npu") or refusal_of_device(
            case, "ATLAS_800_A2_376T_64G"
        )
        assert no is not None and "950" in no.reason, case.describe()
