"""msprof's command line and folders, and joining its output: without a device."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from collector.model.plan import MeasureSettings
from collector.profiles.launches import read_op_summary
from collector.replay.disk_space import NoSpace, check_space, most_launches, storage_limit_mb
from collector.replay.msprof import (
    discard_exports,
    export_missing,
    find_msprof,
    join_summaries,
    msprof_command,
    op_summaries,
    parse_limit_s,
    profiles_of,
)
from collector.replay.process import (
    ControlPipe,
    ProcessId,
    describe_end,
    open_control,
    this_process,
)
from tests.unit.collector.naming import names, naming
from tests.waiting import wait_for

pytestmark = pytest.mark.fast

HEADER = "Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us),Input Shapes,"
HEADER += "Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats"
RECORDS = ("device_0/data/stars_soc.data.0.slice_0", "host/data/aging.api_event.slice_0")


def row(start: int) -> str:
    return f'aclnnAdd_Add,Add,AI_VECTOR_CORE,{start}.5\t,1.5,"""4,4""",FLOAT,ND,"""4,4""",FLOAT,ND'


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_application_follows_the_options():
    command = msprof_command(Path("/cann/msprof"), Path("/out"), "Memory", ["python", "-P"], 512)
    assert command[0] == "/cann/msprof" and command[-2:] == ["python", "-P"]
    assert {"--output=/out", "--aic-metrics=Memory", "--ai-core=on"} <= set(command)
    assert {"--task-time=on", "--storage-limit=512MB"} <= set(command)
    assert f"--python-path={sys.executable}" in command  # not the first of PATH


def test_msprof_is_found_on_the_path_or_in_cann(tmp_path):
    on_path = program(tmp_path / "bin" / "msprof", "")
    in_cann = program(tmp_path / "cann" / "tools/profiler/bin/msprof", "")
    home = {"ASCEND_HOME_PATH": str(tmp_path / "cann")}
    assert find_msprof({"PATH": str(on_path.parent), **home}) == on_path
    assert find_msprof({"PATH": "/nowhere", **home}) == in_cann
    with pytest.raises(BadInput, match=naming("msprof", "PATH", "ASCEND_HOME_PATH", "set_env.sh")):
        find_msprof({"PATH": "/nowhere"})


def test_disk_space_is_required_for_every_possible_launch(tmp_path):
    assert MeasureSettings(repeat_count=5).most_launches() == 11
    assert MeasureSettings(max_repeats=100).most_launches() == 107
    assert most_launches(tmp_path) == 100_000
    check_space(tmp_path, 1)
    with pytest.raises(NoSpace, match=naming(f"{tmp_path}:", 1 << 50, "free disk space")):
        check_space(tmp_path, 1 << 50)
    assert parse_limit_s(100_000) > 2 * parse_limit_s(0)


def test_session_may_record_half_of_the_free_space():
    assert storage_limit_mb(40 << 30) == 20 << 10
    assert storage_limit_mb(0) == 200  # the least that msprof accepts
    assert storage_limit_mb(1 << 60) == (1 << 32) - 1


def test_disk_space_is_required_in_the_volume_too(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMETER_VOLUME_BYTES", str(1 << 20))
    check_space(tmp_path, 1)
    with pytest.raises(NoSpace, match=naming(f"{tmp_path}:", "1 MiB", "100 launches", "4 MiB")):
        check_space(tmp_path, 100)


def test_only_profiles_without_an_op_summary_are_parsed_again(tmp_path):
    whole, bare = tmp_path / "prof/PROF_1", tmp_path / "prof/PROF_2"
    for folder in (whole, bare):
        (folder / "mindstudio_profiler_output").mkdir(parents=True)
    (whole / "mindstudio_profiler_output/op_summary_1.csv").write_text(HEADER)
    (bare / "mindstudio_profiler_output/op_summary_1.csv.part").write_text("half")
    for half in ("device_0/sqlite/ascend_task.db", "host/sqlite/ge_info.db"):
        (bare / half).parent.mkdir(parents=True)
        (bare / half).write_text("half")
    for record in RECORDS:
        (bare / record).parent.mkdir()
        (bare / record).touch()
        for mark in (f"{record}.complete", f"{Path(record).parent}/all_file.complete"):
            (bare / mark).touch()  # the records are in the databases: msprof skips them
        (bare / f"{record}.done").touch()  # the records are complete
    (bare / "msprof_1.db").write_text("half")
    msprof = program(
        tmp_path / "msprof",
        'for word; do case "$word" in --output=*) out="${word#--output=}";; esac; done\n'
        'mkdir -p "$out/mindstudio_profiler_output"\n'
        'case "$1" in --parse=on) cd "$out"; ls -d */*/* >> found; echo parsed; exit;; esac\n'
        'echo "$*" > "$out/mindstudio_profiler_output/op_summary_2.csv"; echo exported',
    )
    export_missing(msprof, tmp_path, tmp_path / "log", 60.0)
    assert [path.name for path in profiles_of(tmp_path / "prof")] == ["PROF_1", "PROF_2"]
    assert [path.name for path in op_summaries(whole)] == ["op_summary_1.csv"]
    (exported,) = op_summaries(bare)
    python = f"--python-path={sys.executable}"
    assert exported.read_text() == f"--export=on {python} --output={bare}\n"
    assert (tmp_path / "log").read_text() == "parsed\nexported\n"
    found = [f"{record}{done}" for record in RECORDS for done in ("", ".done")]
    assert (bare / "found").read_text().split() == found
    assert not (bare / "msprof_1.db").exists()
    discard_exports(tmp_path)
    assert op_summaries(whole) == []


def test_hanging_parser_is_ended(tmp_path):
    (tmp_path / "prof/PROF_1").mkdir(parents=True)
    started = time.monotonic()
    export_missing(program(tmp_path / "msprof", "exec sleep 30"), tmp_path, tmp_path / "log", 0.2)
    assert time.monotonic() - started < 10


def test_slices_of_one_header_are_joined_byte_for_byte(tmp_path):
    (tmp_path / "a.csv").write_text(f"{HEADER}\n{row(1)}\n{row(2)}")  # no end of line
    (tmp_path / "b.csv").write_text(f"{HEADER}\n")
    (tmp_path / "c.csv").write_text(f"{HEADER}\n{row(3)}\n")
    pieces = [tmp_path / name for name in ("a.csv", "b.csv", "c.csv")]
    assert join_summaries(pieces, tmp_path / "all.csv")
    assert (tmp_path / "all.csv").read_text() == f"{HEADER}\n{row(1)}\n{row(2)}\n{row(3)}\n"
    assert [launch.start_ns for launch in read_op_summary(tmp_path / "all.csv")] == [
        1500,
        2500,
        3500,
    ]


def test_slices_with_different_headers_keep_every_column(tmp_path):
    (tmp_path / "a.csv").write_text(f"{HEADER}\n{row(1)}\n")
    (tmp_path / "b.csv").write_text(f"Block Num,{HEADER},aiv_time(us)\n24,{row(2)},1.25\n")
    assert join_summaries([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "all.csv")
    first, second = read_op_summary(tmp_path / "all.csv")
    assert (first.counters, second.counters) == ({}, {"aiv_time(us)": 1.25})
    assert first.cells == second.cells


def test_join_of_no_slices_is_a_header_without_rows(tmp_path):
    assert not join_summaries([], tmp_path / "all.csv")
    assert (tmp_path / "all.csv").read_text().startswith("Device_id,Model ID,")


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (1, (1,)),
        (139, ("SIGSEGV",)),
        (-11, ("SIGSEGV",)),
        (255, (255,)),
        (-9, ("SIGKILL", "memory")),
    ],
)
def test_exit_code_is_described_in_words(code, named):
    found = describe_end(code)
    assert names(found, *named)
    assert ("SIG" in found, "memory" in found) == (named[0] not in (1, 255), "memory" in named)


def test_zombie_process_is_not_alive():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        known = ProcessId.of(process.pid)
        assert known is not None and known.is_alive
        known.kill()
        wait_for(lambda: not known.is_alive)
    assert ProcessId.of(process.pid) is None


def test_later_process_with_the_same_id_is_not_killed():
    me = this_process()
    another = replace(me, started=me.started - 1)
    assert me.is_alive and not another.is_alive
    another.kill()


def test_session_without_a_supervisor_reads_the_end_of_its_pipe(tmp_path):
    with ControlPipe(tmp_path) as control:
        held = open_control(tmp_path)
        control.request_stop()
        assert os.read(held, 100) == b"stop\n"
    late = open_control(tmp_path)
    assert (os.read(held, 1), os.read(late, 1)) == (b"", b"")
    os.close(held)
    os.close(late)


@pytest.mark.parametrize("damaged", [b"\xff\xfe,b\n1,2\n", b"a,c\n\xff,2\n"])
def test_summaries_that_cannot_be_joined_are_refused_in_one_line(tmp_path, damaged):
    (tmp_path / "one.csv").write_bytes(b"a,b\n1,2\n")
    (tmp_path / "two.csv").write_bytes(damaged)
    pieces = [tmp_path / "one.csv", tmp_path / "two.csv"]
    with pytest.raises(BadInput, match=naming(f"{tmp_path}:", "UTF-8")):
        join_summaries(pieces, tmp_path / "all.csv")
