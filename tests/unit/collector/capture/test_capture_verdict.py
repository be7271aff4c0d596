"""The verdict on a capture finds what makes it unusable."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collector.capture.verdict import CAPTURE_FILE, RankVerdict, captured_on, verdicts
from collector.codec.errors import BadInput
from collector.profiles.discovery import find_profiles
from jobs.cli.app import app
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast
COLUMNS = (
    "Step Id,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),Input Shapes,"
    "Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats"
)
SHAPES = '"""4,4;4,4""",FLOAT;FLOAT,ND;ND,"""4,4""",FLOAT,ND'
UNKNOWN = "N/A,N/A,N/A,N/A,N/A,N/A"


def rows(*steps: int, cells: str = SHAPES) -> str:
    """A table with a row for each step number."""
    lines = [
        f"{step},add_{at},Add,dynamic,AI_VECTOR_CORE,{at * 10}.0,2.0,{cells}"
        for at, step in enumerate(steps)
    ]
    return "\n".join([COLUMNS, *lines, ""])


def captured(folder: Path, table: str | None, *, rank: int = 0, world: int = 1) -> Path:
    """Write what a rank leaves after a request for three steps; without a table, raw data."""
    worker = f"host_{100 + rank}"
    run = folder / f"{worker}_20261127000000000_ascend_pt"
    (run / "FRAMEWORK").mkdir(parents=True)
    (run / "FRAMEWORK" / "torch.op_range").write_bytes(b"raw")
    note(folder, rank=rank, world_size=world)
    if table is not None:
        output = run / "ASCEND_PROFILER_OUTPUT"
        output.mkdir()
        (output / "kernel_details.csv").write_text(table)
    return run


def note(folder: Path, *, worker: str = "", rank: int = 0, **more: object) -> Path:
    """Write what a process notes of its capture."""
    worker = worker or f"host_{100 + rank}"
    facts = {"rank": rank, "worker": worker, "steps": 3, "repeat": 1, "steps_kept": 3}
    path = folder / CAPTURE_FILE.format(worker=worker)
    path.write_text(json.dumps({**facts, "backend": "npu", **more}))
    return path


def only(folder: Path) -> RankVerdict:
    (found,) = verdicts(folder)
    return found


GOOD = rows(*(step for step in (1, 2, 3) for _ in range(10)))
# Planted in a capture of one rank: the table, whether nothing can be used, and words of the fault.
PLANTED = (
    ("no device rows", COLUMNS + "\n", True, "no row of a device"),
    ("no shapes", rows(1, 2, 3, cells=UNKNOWN), True, "no row has shapes"),
    ("wrong step count", rows(1, 1, 2, 2), False, "expected 3 steps, got 2"),
    ("lost head", rows(1, *[2] * 10, *[3] * 10), False, "the head is lost"),
    ("lost tail", rows(*[1] * 10, *[2] * 10, 3), False, "the tail is lost"),
    ("analysis killed", None, True, "not analysed"),
    ("disk full", GOOD[:-60], False, "cannot be read"),
)


def test_a_good_capture_has_no_fault(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # no database is here
    captured(tmp_path, GOOD)
    found = only(tmp_path)
    assert (found.rows, found.rows_with_inputs, found.steps) == (30, 30, 3)
    assert found.share == 1.0 and found.faults == () and not found.is_empty
    done = CliRunner().invoke(app, ["capture", "check", str(tmp_path)])
    assert done.exit_code == 0 and "opmeter run CAMPAIGN.yaml" in done.output


def test_a_capture_of_few_cases_is_not_usable(tmp_path):
    unknown = rows(*[1] * 20, cells=UNKNOWN).partition("\n")[2]
    operators = rows(*[1] * 4).replace(",Add,", ",mine.foo,").partition("\n")[2]
    captured(tmp_path, rows(1, 2, 3) + operators + unknown)
    found = only(tmp_path)
    assert found.without_kernel == (("mine.foo", 4),) and not found.is_empty
    assert round(found.share, 3) == round(3 / 27, 3) and not found.is_usable
    done = CliRunner().invoke(app, ["capture", "check", str(tmp_path)])
    assert done.exit_code == 1 and "at least 50.0 %" in done.output


def test_the_share_that_a_database_has_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMETER_LOCKS", str(tmp_path / "locks"))
    monkeypatch.chdir(tmp_path)
    sources = f"campaign: c\nsources: [{{profile: {tmp_path / 'prof'}}}]\nbackend: cpu\n"
    (tmp_path / "c.yaml").write_text(sources + "measure: {budget_s: 0.01}\n")
    captured(tmp_path / "prof", GOOD)
    assert CliRunner().invoke(app, ["run", "c.yaml"]).exit_code == 0
    done = CliRunner().invoke(app, ["capture", "check", "prof"])
    assert done.exit_code == 0 and "the database has 100.0 %" in done.output
    assert "opmeter coverage --budget" in done.output


def test_each_planted_fault_is_found(tmp_path):
    for name, table, is_empty, words in PLANTED:
        captured(tmp_path / name, table)
        found = only(tmp_path / name)
        assert found.is_empty is is_empty, name
        assert words in " ".join(found.faults), (name, found.faults)
        done = CliRunner().invoke(app, ["capture", "check", str(tmp_path / name), "--json"])
        assert done.exit_code == is_empty
        assert json.loads(done.output)[0]["faults"] == list(found.faults)


def test_empty_and_missing_ranks_are_reported(tmp_path):
    captured(tmp_path, GOOD, world=3)
    shutil.rmtree(captured(tmp_path, GOOD, rank=1, world=3))
    found = verdicts(tmp_path)
    assert [(one.rank, one.is_empty) for one in found] == [(0, False), (1, True), (2, True)]


def test_capture_ignores_folders_of_an_older_capture(tmp_path):
    captured(tmp_path, GOOD)
    older = ["host_99_20250101000000000_ascend_pt", "host_100_20250101000000000_ascend_pt"]
    for name in older:
        shutil.copytree(next(tmp_path.glob("host_100_2026*")), tmp_path / name)
    note(tmp_path, earlier=older[1:])  # of the same process; no clock says so
    found = only(tmp_path)
    assert found.rows == 30 and all(name in found.faults[-1] for name in older)


def test_processes_of_a_rank_that_launch_nothing_hide_no_other(tmp_path):
    captured(tmp_path, GOOD)
    for worker in ("host_7", "host_999"):  # a program's helpers inherit its rank
        note(tmp_path, worker=worker)
    found = only(tmp_path)
    assert found.rows == 30 and found.faults == ("2 other processes of this rank launched nothing",)
    note(tmp_path, worker="host_7", faults=["the disk is full"])
    assert only(tmp_path).faults[-1].endswith("launched nothing; the disk is full")
    shutil.rmtree(next(tmp_path.glob("host_100_*")))
    found = only(tmp_path)
    assert found.is_empty and "2 other processes" in found.faults[-1]


def test_each_round_of_the_schedule_has_its_folder(tmp_path):
    first = captured(tmp_path, GOOD)
    second = first.with_name(first.name.replace("2026", "2027"))
    note(tmp_path, repeat=2, steps_kept=6)
    (found,) = verdicts(tmp_path)
    assert "expected 6 steps, got 3" in found.faults
    shutil.copytree(first, second)
    assert [(one.steps, one.faults) for one in verdicts(tmp_path)] == [(3, ()), (3, ())]
    (second / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").write_text(COLUMNS + "\n")
    assert [one.is_empty for one in verdicts(tmp_path)] == [False, True]
    note(tmp_path, repeat=3, steps_kept=9)
    assert all(
        "expected 3 folders, one for each round, got 2" in one.faults[-1]
        for one in verdicts(tmp_path)
    )


def test_a_capture_that_did_not_end_is_reported(tmp_path):
    captured(tmp_path / "prof", None)
    note(tmp_path / "prof", is_complete=False, steps_kept=0)
    for folder in (tmp_path / "prof", tmp_path):  # the one above has the same
        found = only(folder)
        assert found.rank == 0 and found.is_empty and "did not end" in found.faults[-1]
        assert not any("expected" in fault for fault in found.faults)


def test_folders_of_another_capture_tool_are_judged_by_their_contents(tmp_path):
    run = captured(tmp_path, rows(1, 2, cells=UNKNOWN) + rows(3).partition("\n")[2])
    next(tmp_path.glob(CAPTURE_FILE.format(worker="*"))).unlink()
    (run / "profiler_info_5.json").write_text("{}")
    found = only(tmp_path)
    assert (found.rank, found.rows, found.rows_with_inputs) == (5, 3, 1)
    assert found.without_inputs == (("Add", 2),)
    assert captured_on(tmp_path) == "npu"
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "absent"):
        with pytest.raises(BadInput):
            verdicts(folder)


def of_another_tool(
    folder: Path, sizes: dict[int, int], *, active: int = 0, traced: tuple[int, ...] = ()
) -> str:
    """Write what torch_npu's own profiler leaves: rows of these steps, a schedule, and a table of
    steps. Return the faults of the verdict."""
    output = folder / "h_1_20261127000000000_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    table = rows(*(step for step, size in sizes.items() for _ in range(size)))
    (output / "kernel_details.csv").write_text(table)
    if active:
        info = {"config": {"common_config": {"schedule": {"active": active, "repeat": 2}}}}
        (output.parent / "profiler_info.json").write_text(json.dumps(info))
    if traced:
        lines = [f"0,{step},7.0,0,3.0" for step in traced]
        header = "Device_id,Step,Computing,Communication(Not Overlapped),Free"
        (output / "step_trace_time.csv").write_text("\n".join([header, *lines, ""]))
    return "; ".join(only(folder).faults)


def test_steps_are_compared_with_the_files_of_the_profiler(tmp_path):
    eight = dict.fromkeys(range(10, 18), 5)
    for name, more, expected in (
        ("both", {"active": 10, "traced": tuple(range(8, 18))}, (10, 8, 8, 9)),
        ("schedule", {"active": 10}, (10, 8)),
        ("trace", {"traced": tuple(range(8, 18))}, (10, 8, 8, 9)),
        ("whole", {"active": 8, "traced": tuple(range(10, 18))}, ()),
        ("none", {}, ()),
    ):
        faults = of_another_tool(tmp_path / name, eight, **more)
        assert names(faults, *expected) if expected else not faults, (name, faults)
    gap = of_another_tool(tmp_path / "gap", {3: 5, 4: 5, 6: 5})
    assert names(gap, 4, 3, 5)
    (tables,) = (tmp_path / "schedule").glob("*/ASCEND_PROFILER_OUTPUT")  # given by itself
    assert names("; ".join(only(tables).faults), 10, 8)
    between = rows("", "", *[1] * 5, *[2] * 5)  # two rows before the first step
    (tables / "kernel_details.csv").write_text(between)
    (tables.parent / "profiler_info.json").unlink()
    assert only(tables).faults == () and only(tables).steps == 2


def test_steps_with_few_rows_are_found_at_any_place(tmp_path):
    twenty = dict.fromkeys(range(1, 21), 10)
    for name, sizes, expected in (
        ("first of two", {3: 6, 4: 10}, (6, 10)),
        ("first of ten", {**dict.fromkeys(range(3, 13), 10), 3: 6}, (6, 10)),
        ("middle of twenty", {**twenty, 9: 3}, ("9 (3)", 10)),
        ("many", {**twenty, **dict.fromkeys(range(5, 12), 2)}, ("5 (2)", "9 (2)", "2 more", 10)),
        ("last of two", {3: 10, 4: 4}, (4, 10)),
        ("decodes that end", {**twenty, 20: 6}, ()),
    ):
        faults = of_another_tool(tmp_path / name, sizes)
        assert names(faults, *expected) if expected else not faults, (name, faults)


def test_archives_are_judged_as_folders_are(tmp_path):
    folder, packed = tmp_path / "prof", tmp_path / "packed"
    captured(folder, rows(1, *[2] * 10, *[3] * 10), world=2)  # the head is lost, and a rank
    other = captured(tmp_path / "other", rows(1, 2), rank=1)  # without what the processes noted
    shutil.rmtree(other / "FRAMEWORK")
    (other / "ASCEND_PROFILER_OUTPUT" / "step_trace_time.csv").write_text("Step\n0\n1\n2\n")
    packed.mkdir()
    shutil.make_archive(str(packed / "a"), "zip", folder)
    shutil.make_archive(str(packed / "b"), "gztar", other.parent, other.name)
    for archive, inner, one in (("a.zip", "", folder), ("b.tar.gz", other.name, other)):
        expected = [str(found) for found in verdicts(one)]
        place = str(packed / archive / inner) if inner else str(packed / archive)
        assert [str(found).replace(place, str(one)) for found in verdicts(packed / archive)] == (
            expected
        )
    assert len(verdicts(packed)) == 3
    (packed / "c.zip").write_bytes(b"no archive")
    assert sum("c.zip" in str(found) for found in verdicts(packed)) == 1
    for file in (packed / "c.zip", tmp_path / "none.zip", tmp_path / "other" / "x.txt"):
        with pytest.raises(BadInput):
            verdicts(file)


def test_lines_name_the_folder_and_ranks_of_several_roles(tmp_path):
    for role in ("actor", "reference"):
        of_another_tool(tmp_path / role, {1: 4})
    lines = [str(one) for one in verdicts(tmp_path)]
    assert len(set(lines)) == 2
    assert all(
        str(tmp_path / role) in line
        for role, line in zip(("actor", "reference"), lines, strict=True)
    )


def test_traces_of_gpus_are_named_with_the_command_that_reads_them(tmp_path):
    for name in ("worker0.pt.trace.json", "rank1.1718.pt.trace.json.gz", "s-TP-0.trace.json.gz"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(b"{}")
        with pytest.raises(BadInput, match="trace to-csv FILE --by-kernel"):
            verdicts(folder)
        with pytest.raises(BadInput, match="trace to-csv FILE --by-kernel"):
            find_profiles([folder])


def test_a_folder_of_any_name_with_a_table_is_judged(tmp_path):
    for name in ("advice/kernel_details.csv", "PROF/mindstudio_profiler_output/op_summary_1.csv"):
        table = tmp_path / name
        table.parent.mkdir(parents=True)
        table.write_text(GOOD)
        found = only(tmp_path / name.partition("/")[0])
        assert (found.rank, found.rows, found.rows_with_inputs) == (None, 30, 30)


def test_damaged_facts_are_one_line_and_hide_no_other_rank(tmp_path):
    captured(tmp_path, GOOD, world=2)
    damaged = tmp_path / CAPTURE_FILE.format(worker="host_101")
    for text in ("{", "[]", '{"rank": "one"}', '{"world_size": 5000000}', '{"faults": 3}'):
        damaged.write_text(text)
        found = verdicts(tmp_path)
        assert [bool(one.faults) for one in found if one.rank == 0] == [False]
        (line,) = (one.faults for one in found if one.rank is None)
        assert str(damaged) in line[0]


def test_many_missing_ranks_are_counted(tmp_path):
    captured(tmp_path, GOOD, world=1000)
    found = verdicts(tmp_path)
    assert len(found) == 65 and "935 further ranks" in found[-1].faults[-1]
