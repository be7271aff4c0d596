"""The reports contain all events, under unique names."""

import csv
import re
from datetime import datetime

import pytest

from collector.model.case import case_from_cells
from collector.model.measurement import Measurement, Outcome
from collector.model.row import from_row
from collector.model.stack import Stack
from collector.model.vocabulary import BASE_CELLS
from collector.singlehost.from_replay import provenance_of
from collector.singlehost.reports import (
    GAP_COLUMNS,
    Leftover,
    MicrobenchResult,
    UnmeasuredCase,
    Update,
    Written,
    gaps,
    page,
    table,
    write_reports,
)
from collector.singlehost.version_files import RowPosition
from tests.unit.collector.singlehost.conftest import PLAIN

pytestmark = pytest.mark.fast

NOW = datetime(2026, 6, 1, 14, 24, 41)
REPORT = "replay_report_20260601_142441.md"
ADD = case_from_cells("Add", PLAIN)


def written(us, profiling_us=None, at=0, **more):
    return Written(RowPosition("Add.csv", at), ADD, us, 7, profiling_us=profiling_us, **more)


def result(folder, *rows, **more):
    return MicrobenchResult(folder, Update.ALL, (("Source", "a test"),), written=rows, **more)


def names(folder):
    return sorted(path.name for path in (folder / "reports").iterdir())


def test_table_is_aligned_and_an_empty_one_is_marked_none():
    assert table(("A", "B"), []) == ["_None_"]
    assert table(("A", "Long"), [("x|y", 1), ("z", 22)]) == [
        "| A    | Long |",
        "| ---- | ---- |",
        "| x\\|y | 1    |",
        "| z    | 22   |",
    ]


def test_report_lists_written_failed_and_unused_rows(tmp_path):
    text = page(
        result(
            tmp_path,
            written(3.0, 2.0, ran="MatMulV3 ran: 8,8;8,8 -> 8,8", old_us=9.0),
            written(1.0, at=1, is_new=True),
            kept=4,
            unanswered=(
                UnmeasuredCase(ADD, Outcome.CRASHED, "killed by SIGSEGV"),
                UnmeasuredCase(ADD, Outcome.UNSUPPORTED, "no operator is declared for Add"),
            ),
            leftover=(Leftover(ADD, 5.0, 2, "the tree has no Mul.csv"),),
            alone=(ADD,),
            duplicates=((ADD, 3),),
            deleted=(("Add", PLAIN),),
            is_complete=False,
        )
    )
    lines = {" ".join(line.replace("|", " ").split()) for line in text.splitlines()}
    # Of files, and of rows: updated, added, unchanged, ignored and deleted; then of cases.
    overview = text.split("\n## ")[2].splitlines()
    assert re.findall(r"\| (\d+) +\|$", "\n".join(overview), re.MULTILINE) == list("111041111111")
    shapes = "4096,1024;4096,1024 -> 4096,1024"
    tensors = "FLOAT;FLOAT ND;ND dynamic"
    assert f"Add {shapes} {tensors} crashed killed by SIGSEGV" in lines
    assert f"Add {shapes} {tensors} unsupported no operator is declared for Add" in lines
    assert f"Add {shapes} {tensors} 2 5.000000 the tree has no Mul.csv" in lines
    note = "MatMulV3 ran: 8,8;8,8 -> 8,8"
    assert f"Add 2 {shapes} {tensors} 7 3.000000 9.000000 {note}" in lines
    assert any(line.startswith(f"Add 3 {shapes} {tensors} 7 1.000000") for line in lines)
    assert any(line.startswith("**") for line in lines)  # the run is not complete
    deleted = " ".join(["Add", *(PLAIN[name] for name in BASE_CELLS)])
    assert deleted in lines
    assert re.search(r"^## .*\(1 of 1\)$", text, re.MULTILINE)


def test_gaps_are_sorted_by_the_difference_of_both_durations(tmp_path):
    rows = [written(us, 10.0, at) for at, us in enumerate((9.0, 30.0, 2.0, 12.0))]
    found = gaps(result(tmp_path, *rows, written(5.0)))
    assert [gap.mean_us for gap in found] == [2.0, 30.0, 12.0, 9.0]
    assert [gap.is_hot for gap in found] == [True, True, False, False]
    assert (found[0].ratio, found[0].difference_us) == (0.2, 8.0)


def test_two_runs_in_one_second_keep_both_reports(tmp_path):
    first = write_reports(result(tmp_path, written(3.0, 2.0)), NOW)
    second = write_reports(result(tmp_path, written(4.0, 2.0)), NOW)
    assert first.name == REPORT
    assert second.name == "replay_report_20260601_142441_2.md"
    assert "3.000000" in first.read_text() and "4.000000" in second.read_text()
    tables = {"duration_gap_20260601_142441.csv", "duration_gap_20260601_142441_2.csv"}
    assert set(names(tmp_path)) == tables | {first.name, second.name}


def test_the_gap_table_has_a_row_for_each_pair_of_durations(tmp_path):
    write_reports(result(tmp_path, written(3.0, 2.0), written(1.0)), NOW)
    with (tmp_path / "reports" / "duration_gap_20260601_142441.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert tuple(row) == GAP_COLUMNS
    assert (row["MB/Profile"], row["Hotspot"], row["Launches"]) == ("1.500000", "yes", "7")


def test_certificates_of_a_replay_are_stored(tmp_path):
    provenance = provenance_of(Stack("CPU_x_2t", "2.13.0"), "cpu")
    reported = Measurement(ADD.case_id, "Add", Outcome.HUNG, "not done after 240 s", provenance)
    write_reports(result(tmp_path, measurements=(reported,)), NOW)
    name = "replay_certificates_20260601_142441.csv"
    with (tmp_path / "reports" / name).open(newline="") as file:
        assert [from_row(row) for row in csv.DictReader(file)] == [reported]


def test_no_certificates_are_written_without_measurements(tmp_path):
    write_reports(result(tmp_path), NOW)
    assert names(tmp_path) == ["duration_gap_20260601_142441.csv", REPORT]
