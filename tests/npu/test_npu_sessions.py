"""Sessions of the stock torch_npu under msprof, on an NPU that computes nothing: the effect of each
failure of a device or its profiler on the results.

The fake NPU's durations follow from the call alone, so that a wrong attribution is visible. Faults
of the export are applied to one session's records, exported again for each fault.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import pytest
import zstandard

from collector.codec.errors import BadInput
from collector.engine.wheel import NoRecordingRuntime
from collector.host.stack import installed_torch
from collector.measuring.batches import RawRecords, SessionResults
from collector.measuring.instrument import ReplayInstrument, SessionSettings
from collector.model.measurement import Measurement, Outcome, Proof
from collector.model.plan import CANARY_PLACES, Limits, MeasureSettings, ShardCase
from collector.model.record import CaseRecord
from collector.model.stack import Runtime, Stack
from collector.model.vocabulary import INPUT_SHAPES
from collector.profiles.launches import read_op_summary
from collector.quality.reconcile import mark_of
from collector.replay.disk_space import NoSpace
from collector.replay.journal import JOURNAL, read_journal
from collector.replay.msprof import (
    OUTPUT,
    discard_exports,
    export_missing,
    find_msprof,
)
from collector.replay.results import SessionResult, collect_session
from collector.replay.seal import unseal
from collector.replay.spec import SessionCase, SessionSpec, write_spec
from collector.replay.supervisor import Ending, SessionProgress, SessionReport, run_session
from tests.npu.fakecann.build import build_fake_cann, environment
from tests.npu.fakecann.faults import Fault, write_faults
from tests.unit.collector.naming import names, naming
from tests.unit.collector.replay.replay_cases import PROVENANCE, by_kernel, case_record

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


class Bench:
    """Runs sessions on the fake NPU; `faults` requests the faults of the next ones."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch):
        self.folder = folder
        self._patch = patch
        self._sessions = 0

    def faults(self, *faults: Fault, seed: int = 0) -> None:
        path = write_faults(self.folder / "faults.json", *faults, seed=seed)
        self._patch.setenv("FAKE_CANN_FAULTS", str(path))

    def run(self, spec: SessionSpec, **more: object) -> tuple[SessionReport, SessionResult]:
        self._sessions += 1
        directory = self.folder / f"session_{self._sessions}"
        directory.mkdir()
        report = run_session(spec, directory, **more)  # type: ignore[arg-type]
        return report, collect_session(spec, directory, report, PROVENANCE)

    def export_again(self, recorded: "Recorded") -> SessionResult:
        """Return the results of an earlier session, if its records are exported with these
        faults."""
        directory = self.folder / "again"
        shutil.copytree(recorded.directory / OUTPUT, directory / OUTPUT)
        shutil.copy(recorded.directory / JOURNAL, directory)
        discard_exports(directory)
        export_missing(find_msprof(), directory, directory / "msprof.log", 60.0)
        return collect_session(recorded.spec, directory, recorded.report, PROVENANCE)


@dataclass(frozen=True)
class Recorded:
    """A session that ran to its end without faults."""

    spec: SessionSpec
    directory: Path
    report: SessionReport
    result: SessionResult


def bench_in(folder: Path, patch: pytest.MonkeyPatch) -> Bench:
    try:
        env = environment(build_fake_cann())
    except NoRecordingRuntime as error:
        pytest.skip(str(error))
    env["PYTHONPATH"] = f"{env['PYTHONPATH']}:{ROOT}"
    for name, value in env.items():
        patch.setenv(name, value)
    return Bench(folder, patch)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return bench_in(tmp_path, monkeypatch)


def session(*records: CaseRecord, limit_s: float = 60.0, **more: object) -> SessionSpec:
    made = SessionSpec(
        backend="npu",
        device=0,
        cases=tuple(SessionCase(record, 0.01, limit_s) for record in records),
        measure=MeasureSettings(repeat_count=5),
        limits=Limits(),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def add(rows: int, dtype: str = "FLOAT") -> CaseRecord:
    return case_record("Add", f"{rows},64;{rows},64", f"{rows},64", dtype)


def unary(kernel: str, rows: int = 16) -> CaseRecord:
    return case_record(kernel, f"{rows},64", f"{rows},64")


def nz_matmul() -> CaseRecord:
    record = case_record("MatMulV3", "32,64;8,4,16,16", "32,128", "DT_BF16")
    return replace(record, cells={**record.cells, "Input Formats": "ND;FRACTAL_NZ"})


def outcomes(result: SessionResult) -> list[Outcome]:
    return [m.outcome for m in result.measurements if not m.is_filed]


def about(record: CaseRecord, result: SessionResult) -> list[Measurement]:
    """Return the result of a case, and the measurement of the kernel that ran in its place."""
    return [m for m in result.measurements if record.case_id in (m.case_id, m.asked)]


FORTY = [add(rows) for rows in range(1, 41)]
GOOD = [*FORTY, unary("Abs"), add(8, "DT_BF16")]
MARK = case_record("Abs", "3,7,1,1,1", "3,7,1,1,1")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The good cases, two that cannot be measured, and one whose kernel is replaced by another."""
    spec = session(*GOOD, unary("NoSuchKernel"), MARK, nz_matmul())
    return complete_session(tmp_path_factory.mktemp("recorded"), spec)


def complete_session(folder: Path, spec: SessionSpec, *faults: Fault) -> Recorded:
    """A session that many tests read, or export again."""
    with pytest.MonkeyPatch.context() as patch:
        bench = bench_in(folder, patch)
        if faults:
            bench.faults(*faults)
        report, result = bench.run(spec)
    return Recorded(spec, folder / "session_1", report, result)


def test_every_case_has_a_result_of_the_fake_runtime(recorded):
    report, result = recorded.report, recorded.result
    assert report.ending is Ending.COMPLETE, report.log_tail
    good, others = outcomes(result)[: len(GOOD)], outcomes(result)[len(GOOD) :]
    assert good == [Outcome.OK] * len(GOOD)
    assert others == [Outcome.UNSUPPORTED, Outcome.REJECTED, Outcome.SUBSTITUTED]
    assert {m.provenance.runtime for m in result.measurements} == {"fake"}
    for m in result.measurements[: len(GOOD)]:
        assert m.n_expected == m.n_observed == m.n_accepted == 5
        assert (m.op_state, m.core, m.companions) == ("dynamic", "AI_VECTOR_CORE", ())
        assert dict(m.counters)["aiv_time(us)"] > 0
    marks = [row.duration_us for row in read_op_summary(result.summary) if mark_of(row)]
    (floor_us,) = {m.profiler_floor_us for m in result.measurements[: len(GOOD)]}
    assert 0 < min(marks) <= floor_us <= median(marks)
    refused = result.measurements[len(GOOD) + 1]
    assert "(3, 7, 1, 1, 1)" in refused.reason
    assert _durations(result) == pytest.approx(_recorded_durations(result))
    assert result.unread == ""


def test_weight_is_converted_to_fractal_nz_before_its_launches(recorded):
    rows = list(read_op_summary(recorded.result.summary))
    launches = [row for row in rows if "FRACTAL_NZ" in row.cells["Input Formats"]]
    assert len(launches) == 8
    assert {row.cells[INPUT_SHAPES] for row in launches} == {'"32,64;8,4,16,16"'}


def test_cold_launch_is_distinguished_from_the_cache_flush(bench):
    """Although msprof fails after it has written its records."""
    measure = MeasureSettings(repeat_count=4, cache="cold")
    bench.faults(Fault("status", count=139))
    report, result = bench.run(session(add(8), unary("Abs"), measure=measure))
    assert (report.ending, report.reason) == (Ending.COMPLETE, "")
    assert outcomes(result) == [Outcome.OK] * 2
    assert _durations(result) == _recorded_durations(result)
    for m in result.measurements:
        assert (m.cache, m.n_observed, m.companions) == ("cold", 4, ())
    # This runtime reports a cache of a few bytes, which would flush nothing.
    rows = list(read_op_summary(result.summary))
    added = [row.cells[INPUT_SHAPES].strip('"').split(";") for row in rows if row.op_type == "Add"]
    flushed = [first for first, second in added if not second]  # one scalar is added
    assert {int(shape) * 4 for shape in flushed} == {240 * 2**20}


def in_context(record: CaseRecord, *before: CaseRecord) -> CaseRecord:
    return replace(record, before=before)


@pytest.fixture(scope="module")
def in_contexts(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Two cases and eight more, after launches of their own type and tensors, too; msprof ends
    without an export."""
    unknown = case_record("NoSuchKernel", "4,4", "4,4")
    two = (in_context(add(8), add(8), unknown, unary("Abs")), in_context(unary("Abs"), add(8)))
    eight = (in_context(add(rows), unary("Abs"), add(rows)) for rows in range(11, 19))
    measure = MeasureSettings(repeat_count=4, cache="context")
    spec = session(*two, *eight, measure=measure)
    return complete_session(tmp_path_factory.mktemp("contexts"), spec, Fault("no_export", times=1))


def test_context_launches_are_distinguished_by_their_order(recorded, in_contexts):
    """Without marks between kernels, and with a later export."""
    report, result = in_contexts.report, in_contexts.result
    assert (report.ending, report.reason) == (Ending.COMPLETE, "")
    assert outcomes(result) == [Outcome.OK] * 10
    alone = _durations(recorded.result)
    found = _durations(result)
    assert found == pytest.approx({case: alone[case] for case in found})
    for m, before in zip(result.measurements, (2, 1), strict=False):
        assert (m.cache, m.n_observed, m.companions) == ("context", 4, ())
        assert m.identity is Proof.PROVED and names(m.context, before)
    assert names(result.measurements[0].context, "NoSuchKernel")


@pytest.mark.parametrize("seed", [1, 2])
def test_lost_records_of_context_launches_change_no_duration(bench, in_contexts, seed):
    bench.faults(Fault("lose", share=0.02), seed=seed)
    damaged = bench.export_again(in_contexts)
    whole = _durations(in_contexts.result)
    lost = [m for m in damaged.measurements if m.outcome is Outcome.PROFILER_LOST]
    good = [m for m in damaged.measurements if m.is_good]
    assert len(lost) + len(good) == len(in_contexts.spec.cases) and lost and good
    found = _durations(damaged)
    assert all(found[m.case_id] == whole[m.case_id] for m in good)


def test_lost_first_records_cost_no_case(bench, recorded):
    bench.faults(Fault("lose_head", count=12))
    assert _durations(bench.export_again(recorded)) == _durations(recorded.result)


@pytest.mark.parametrize("seed", [1, 2])
def test_lost_records_cost_their_own_cases_and_change_no_duration(bench, recorded, seed):
    bench.faults(Fault("lose", share=0.05), seed=seed)
    damaged = bench.export_again(recorded)
    lost = [m for m in damaged.measurements if m.outcome is Outcome.PROFILER_LOST]
    good = _durations(damaged)
    assert {m.case_id for m in lost} | good.keys() >= {case.case_id for case in GOOD}
    assert 5 < len(lost) < 40
    answered = {m.case_id for m in damaged.measurements}
    assert answered >= {case.record.case_id for case in recorded.spec.cases}
    assert good.items() <= _durations(recorded.result).items()


def test_records_without_shapes_are_attributed_by_their_order(bench, recorded):
    bench.faults(Fault("hide_shapes", kernel="Add"))
    assert _durations(bench.export_again(recorded)) == _durations(recorded.result)


def test_recording_without_its_marks_gives_no_durations(bench, recorded):
    bench.faults(Fault("hide_shapes", call="aclnnNeg("))
    result = bench.export_again(recorded)
    assert outcomes(result)[: len(GOOD)] == [Outcome.PROFILER_LOST] * len(GOOD)


@pytest.fixture(scope="module")
def substituted(tmp_path_factory: pytest.TempPathFactory, recorded: Recorded) -> SessionResult:
    """The results, had other kernels run in place of three: a twin, another operator, and one of
    unknown tensors."""
    unknown = "aclnnAdd(f32[10,64]"
    with pytest.MonkeyPatch.context() as patch:
        bench = bench_in(tmp_path_factory.mktemp("substituted"), patch)
        bench.faults(
            Fault("rename", call="aclnnAdd(f32[8,64]", to="AddAiCore"),
            Fault("rename", call="aclnnAdd(f32[9,64]", to="TensorMove"),
            Fault("rename", call=unknown, to="TensorMove"),
            Fault("hide_shapes", call=unknown),
        )
        return bench.export_again(recorded)


def test_twin_that_ran_is_recorded_under_its_own_name(substituted):
    requested, ran = about(add(8), substituted)
    assert requested.outcome is Outcome.SUBSTITUTED and names(requested.reason, "AddAiCore", "Add")
    assert requested.timing is None
    assert (ran.outcome, ran.kernel_type, ran.asked) == (Outcome.OK, "AddAiCore", requested.case_id)
    assert ran.case_id == replace(add(8), kernel_type="AddAiCore").case_id
    assert ran.measurement_id != requested.measurement_id


def test_another_operator_that_ran_is_recorded_under_its_name(substituted):
    requested, ran = about(add(9), substituted)
    assert requested.outcome is Outcome.SUBSTITUTED and names(requested.reason, "TensorMove", "Add")
    assert (ran.outcome, ran.kernel_type, ran.identity) == (Outcome.OK, "TensorMove", "proved")


def test_another_operator_with_unknown_tensors_is_not_recorded(substituted):
    (requested,) = about(add(10), substituted)
    assert requested.outcome is Outcome.SUBSTITUTED and names(requested.reason, "TensorMove", "Add")


def test_substituted_cases_change_no_other(substituted):
    others = [record for record in GOOD if record not in (add(8), add(9), add(10))]
    found = [(m.outcome, m.is_filed) for record in others for m in about(record, substituted)]
    assert found == [(Outcome.OK, False)] * len(others)


def test_slices_and_newer_headers_are_joined_as_msprof_wrote_them(bench, recorded):
    bench.faults(Fault("slices", count=4), Fault("block", to="Num"))
    result = bench.export_again(recorded)
    assert _durations(result) == _durations(recorded.result)
    header = result.summary.read_text().splitlines()[0]
    assert "Block Num,Mix Block Num" in header
    slices = list(bench.folder.rglob("op_summary_*_slice_*.csv"))
    rows = sum(len(path.read_text().splitlines()) - 1 for path in slices)
    assert len(slices) == 4
    assert len(result.summary.read_text().splitlines()) == 1 + rows


LACKING = ("NeedsOpp", "NeedsVllm", "NoAttribute", "NoTorchOp")


@pytest.fixture(scope="module")
def unread(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A session with an unreadable profile, most of whose cases are not launched."""
    folder = tmp_path_factory.mktemp("unread")
    with pytest.MonkeyPatch.context() as patch:
        bench = bench_in(folder, patch)
        patch.delenv("ASCEND_CUSTOM_OPP_PATH", raising=False)
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
        bench.faults(Fault("no_export", times=1), Fault("lose"))
        unknown = map(unary, ("NoSuchKernel", *LACKING))
        spec = session(add(8), *unknown, catalog="npu_operators")
        report, result = bench.run(spec)
    return Recorded(spec, folder / "session_1", report, result)


def test_session_with_an_unreadable_profile_has_no_results(unread):
    report, result = unread.report, unread.result
    assert report.ending is Ending.COMPLETE
    assert outcomes(result) == [Outcome.UNSUPPORTED] * 5
    assert "op_summary" in result.unread and result.began
    assert about(add(8), result) == []


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A session that ended in a launch of its third case."""
    spec = session(add(8), add(9), unary("Abs"), add(10))
    crash = Fault("crash", call="aclnnAbs(", nth=3)
    return complete_session(tmp_path_factory.mktemp("crashed"), spec, crash)


def test_crash_keeps_the_preceding_cases(crashed):
    report, result = crashed.report, crashed.result
    assert (report.ending, report.offender) == (Ending.CRASHED, 2)
    assert "SIGSEGV" in report.reason or "msprof" in report.reason
    assert outcomes(result) == [Outcome.OK, Outcome.OK, Outcome.CRASHED]
    assert about(add(10), result) == []


def test_case_of_a_crash_with_lost_records_is_measured_again(bench, crashed):
    bench.faults(Fault("lose", kernel="Add", nth=12))
    result = bench.export_again(crashed)
    assert outcomes(result) == [Outcome.OK, Outcome.CRASHED]
    assert about(add(9), result) == about(add(10), result) == []


def test_hanging_session_is_ended_with_msprof_and_its_case_blamed(bench):
    bench.faults(Fault("hang", call="aclnnAbs(", nth=2))
    spec = session(add(8), unary("Abs"), add(9), limit_s=5.0)
    report, result = bench.run(spec)
    assert (report.ending, report.offender) == (Ending.HUNG, 1)
    assert names(report.reason, "5 s", "limits.case_s", "60 s")
    assert outcomes(result) == [Outcome.OK, Outcome.HUNG]
    assert _processes_of(bench.folder) == []


def test_stopped_session_finishes_its_current_case(bench):
    stop = threading.Event()
    tick = _once(lambda progress: progress.ended >= 2, stop.set)
    spec = session(*(add(rows) for rows in range(1, 4000)))
    report, result = bench.run(spec, tick=tick, stop=stop)
    assert report.ending is Ending.STOPPED
    assert 2 <= len(result.measurements) < len(spec.cases)
    assert set(outcomes(result)) == {Outcome.OK}


def test_neither_session_nor_msprof_survives_a_killed_supervisor(bench):
    bench.faults(Fault("hang", call="aclnnAbs("))
    write_spec(session(unary("Abs")), bench.folder)
    code = (
        "import sys; from pathlib import Path\n"
        "from collector.replay.spec import read_spec\n"
        "from collector.replay.supervisor import run_session\n"
        "run_session(read_spec(Path(sys.argv[1])), Path(sys.argv[1]))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(bench.folder)], cwd=ROOT) as parent:
        try:
            _until(lambda: read_journal(bench.folder / JOURNAL).in_flight is not None, 60)
            assert len(_processes_of(bench.folder)) == 3  # it, msprof, and the session
        finally:
            parent.send_signal(signal.SIGKILL)
    _until(lambda: _processes_of(bench.folder) == [], 20)


def test_missing_requirement_is_reported_before_any_case(bench, monkeypatch):
    report, result = bench.run(session(add(8), device=1))
    assert (report.ending, report.offender) == (Ending.CRASHED, None)
    assert names(report.reason, "npu", "device 1", "torch")
    assert result.measurements == () and not result.began
    report, _ = bench.run(session(add(8), stack=Stack("ATLAS_800_A2_313T_64G", "2.9.0")))
    assert names(report.reason, "npu", "device 0") and "'Ascend910_93" in report.reason
    monkeypatch.delenv("LD_PRELOAD")
    if "+cu" in (installed_torch() or ""):
        report, _ = bench.run(session(add(8)))
        assert names(report.reason, "CUDA", "torch_npu")


def test_failing_msprof_start_is_reported(bench, monkeypatch):
    bench.faults(Fault("refuse", count=3))
    report, result = bench.run(session(add(8)))
    assert names(report.reason, 3) and not result.began
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadInput, match=r"msprof.*PATH.*source .*/set_env\.sh"):
        bench.run(session(add(8)))


def test_insufficient_disk_space_is_reported_before_the_session(bench, monkeypatch):
    usage = shutil.disk_usage(bench.folder)._replace(free=100 << 10)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(NoSpace, match=naming("0 MiB", 11, "1 MiB")):
        bench.run(session(add(8), measure=MeasureSettings(repeat_count=5)))


def test_session_may_be_silent_during_a_profiler_flush(bench, monkeypatch):
    monkeypatch.setenv("TEST_FLUSH_S", "8")
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}:{Path(__file__).parent}")
    spec = session(add(8), catalog="npu_operators")
    report, result = bench.run(spec, heartbeat_limit_s=5.0)
    assert (report.ending, report.wall_s > 8) == (Ending.COMPLETE, True)
    assert [m.outcome for m in result.measurements] == [Outcome.OK]


def test_operators_without_their_requirements_are_unsupported(unread):
    found = by_kernel(unread.result.measurements)
    assert {found[name].outcome for name in LACKING} == {Outcome.UNSUPPORTED}
    assert "export ASCEND_CUSTOM_OPP_PATH=" in found["NeedsOpp"].reason
    assert names(found["NeedsVllm"].reason, "'vllm_ascend'")
    assert names(found["NoAttribute"].reason, "torch_npu.npu_no_such_thing")
    assert names(found["NoTorchOp"].reason, "vllm-ascend")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[SessionResults, SessionResults]:
    """Sessions of a minute, with two groups of counters, and what follows from their records alone,
    as they were kept before they were read."""
    groups = ("Memory", "PipeUtilization")
    measure = MeasureSettings(repeat_count=3, aic_metrics=groups)
    stack = Stack("ATLAS_800_A3_752T_128G_DIE", "2.13.0")
    settings = SessionSettings("npu", stack, measure, Limits())
    cases = [ShardCase(add(8), 30.0), ShardCase(unary("NoSuchKernel"), 0.01)]
    with pytest.MonkeyPatch.context() as patch:
        bench = bench_in(tmp_path_factory.mktemp("instrumented"), patch)
        cases = [*cases, ShardCase(add(16), 30.0)]
        provenance, records = replace(PROVENANCE, runtime=Runtime.FAKE), {}

        def keep(session: int, raw: RawRecords) -> None:
            data = (zstandard.compress(path.read_bytes()) for path in (raw.summary, raw.journal))
            records[raw.group] = unseal(*data, key="journal")

        given = (threading.Event(), lambda done, case: None)
        results = ReplayInstrument(settings, bench.folder, *given, keep=keep).measure(
            cases, provenance
        )
        again = ReplayInstrument(settings, tmp_path_factory.mktemp("again"), *given)
        return results, again.reread(cases, records, provenance)


@pytest.fixture(scope="module")
def instrumented(kept: tuple[SessionResults, SessionResults]) -> SessionResults:
    return kept[0]


def test_results_of_all_passes_follow_from_the_records_that_were_kept(kept):
    results, again = kept
    assert again.measurements == results.measurements
    assert again.usage.launches == results.usage.launches


def test_every_counter_group_is_a_separate_pass(instrumented):
    answers = instrumented
    good, refused, _ = answers.measurements
    names = [name for name, _ in good.counters]
    assert "aiv_vec_time(us)" in names and "aiv_main_mem_read_bw(GB/s)" in names
    assert len(names) == len(set(names)) and good.warnings == ()
    assert refused.outcome is Outcome.UNSUPPORTED
    assert [raw.group for raw in answers.raw] == ["", "Memory"]
    assert "aiv_main_mem_read_bw" in answers.raw[1].summary.read_text().splitlines()[0]


def test_session_of_a_minute_has_canary_readings(instrumented):
    measured = [m for m in instrumented.measurements if m.outcome is not Outcome.UNSUPPORTED]
    assert [m.case_id for m in measured] == [add(rows).case_id for rows in (8, 16)]
    assert all(m.is_good and m.n_expected == 3 for m in measured)
    (reported,) = {m.canaries for m in measured}
    # The fake device does a product of 4096 in less than any device can: that is not a reading.
    assert [(r.case.split()[0], r.place) for r in reported] == [("Add", p) for p in CANARY_PLACES]


def _durations(result: SessionResult) -> dict[str, float]:
    return {m.case_id: m.timing.mean_us for m in result.measurements if m.is_good}


def _recorded_durations(result: SessionResult) -> dict[str, float]:
    """Return the duration of each case by the rows' own cells: in these sessions no two cases have
    equal ones."""
    recorded = {}
    for row in read_op_summary(result.summary):
        case = CaseRecord(row.op_type, row.cells, {})
        recorded[case.case_id] = row.duration_us
    return {m.case_id: recorded[m.case_id] for m in result.measurements if m.is_good}


def _processes_of(folder: Path) -> list[int]:
    """The processes that have a folder below this one on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def _until(condition: Callable[[], bool], limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def _once(condition: Callable[[SessionProgress], bool], act: Callable[[], None]):
    def tick(progress: SessionProgress) -> None:
        if condition(progress):
            act()

    return tick
