"""A whole pass of a model is timed by the clock, in a session with operators of a profiler."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from collector.model.measurement import CLOCK, PROFILER, Outcome
from collector.model.plan import MeasureSettings
from collector.model.record import CaseRecord
from collector.ops.own import find_operator_file, load_operator_file
from collector.ops.references import reference_record
from collector.ops.refusals import refusal
from collector.ops.runtime import with_runtime_columns
from collector.replay.check_session import check_result, check_spec
from collector.replay.supervisor import Ending, run_session
from opmeter.written_cases import case_of_text

pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")
pytestmark = pytest.mark.torch

FILE = find_operator_file("decoder.py")
PASSES = {one.kernel: one.spec(FILE) for one in load_operator_file(FILE)}


def _record(text: str) -> CaseRecord:
    return with_runtime_columns(case_of_text(text).record(), PASSES[text.split()[0]])


def test_passes_are_timed_as_a_whole_beside_operators(tmp_path: Path) -> None:
    cache = "2,2,4,16,16"
    passes = [
        _record(f"{kernel} 2,1;{cache};{cache};64,64;{up},64,128 i64;f32;f32;f32;f32")
        for kernel, up in (("Decoder", "2"), ("MixtureDecoder", "2,4"))
    ]
    add = reference_record("Add", "64,64;64,64", "64,64", "FLOAT")
    settings = MeasureSettings(repeat_count=5)
    spec = check_spec("cpu", 0, [passes[0], add, passes[1]], settings)
    spec = replace(spec, operators=(FILE,), threads=1)
    report = run_session(spec, tmp_path)
    assert report.ending is Ending.COMPLETE, report.log_tail
    result = check_result(spec, tmp_path, report)
    assert [one.outcome for one in result.measurements] == [Outcome.OK] * 3
    dense, added, mixture = result.measurements
    assert added.timed_by == PROFILER
    with result.summary.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for one in (dense, mixture):
        assert (one.timed_by, one.n_expected, one.n_observed) == (CLOCK, 5, 5)
        assert one.profiler_floor_us == 0
        names = {row["Op Name"] for row in rows if row["OP Type"] == one.kernel_type}
        assert names == {one.kernel_type}  # no operator inside of it was recorded
        assert one.timing is not None and one.timing.mean_us > 0


def test_passes_are_refused_where_nothing_times_a_whole() -> None:
    case = _record(f"Decoder 1,1{';1,1,1,8,8' * 2};16,8;1,8,16 i64;f32;f32;f32;f32").case
    assert refusal(case, PASSES.get, "cpu") is None is refusal(case, PASSES.get, "events")
    for backend in ("npu", "cuda"):
        found = refusal(case, PASSES.get, backend)
        assert found is not None and "cpu or events" in found.reason
