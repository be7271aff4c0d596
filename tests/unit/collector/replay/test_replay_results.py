"""From the records of a profiler to measurements: impossible durations are not measurements."""

import csv
import re
from dataclasses import asdict, replace

import pytest

from collector.codec.canonical import sha256_hex
from collector.codec.table import table_bytes
from collector.model.measurement import ClockLimit, Condition, Disturbance, Outcome
from collector.model.peaks import MachinePeaks
from collector.model.plan import Limits, MeasureSettings
from collector.model.record import CaseRecord, as_ran
from collector.model.stack import Stack
from collector.model.vocabulary import ACCELERATOR_CORE
from collector.quality import gates
from collector.quality.canaries import is_suspect
from collector.quality.gates import gate_of_outcome, gate_of_warning
from collector.quality.reconcile import Mark, Sentinel
from collector.replay.journal import CHECKING, JOURNAL, LAUNCHING, MEASURED, JournalWriter
from collector.replay.kineto import IDLE_OPERATOR
from collector.replay.msprof import SummaryRow, write_summary
from collector.replay.results import SUMMARY, collect_session
from collector.replay.spec import SessionCase, SessionSpec
from collector.replay.supervisor import Ending, SessionReport
from tests.unit.collector.naming import names
from tests.unit.collector.replay.replay_cases import PROVENANCE, case_record

pytestmark = pytest.mark.fast

PRODUCT = case_record("MatMulV3", "4096,4096;4096,4096", "4096,4096", "DT_BF16")
A3 = Stack("ATLAS_800_A3_752T_128G_DIE", "2.9.0", cann="8.5")
SPEC = SessionSpec(
    backend="cpu",
    device=0,
    cases=(SessionCase(PRODUCT, 1.0, 60.0),),
    measure=MeasureSettings(repeat_count=3),
    limits=Limits(case_s=60.0),
    stack=A3,
)


@pytest.fixture
def collected(tmp_path):
    """(nanoseconds of each repeat) -> the measurements of a session with them."""

    def collect_of(
        *durations_ns,
        spec=SPEC,
        doubt="",
        core="AI_CORE",
        watch=(),
        counted=(),
        idle=(),
        name="x",
        conditions=(),
    ):
        cells = {**PRODUCT.cells, ACCELERATOR_CORE: core}
        marks = [{"Input Shapes": ",".join(map(str, Sentinel(m, 0).shape))} for m in Mark][:2]
        rows = [
            *idle,
            ("OpmeterSentinel", marks[0], 1000),
            *((PRODUCT.kernel_type, cells, ns) for ns in durations_ns),
            ("OpmeterSentinel", marks[1], 1000),
        ]
        summary = [
            SummaryRow(name, kernel, cells, at, ns)
            for at, (kernel, cells, ns) in enumerate(rows, 10**12)
        ]
        write_summary(summary, tmp_path / "slice.csv")
        sha256 = _with_counters(tmp_path / "slice.csv", dict(counted))
        for earlier in (JOURNAL, SUMMARY):
            (tmp_path / earlier).unlink(missing_ok=True)
        writer = JournalWriter(tmp_path / JOURNAL)
        writer.write("begin", ordinal=0, case=spec.cases[0].record.case_id, time="t0")
        if conditions:
            writer.write("condition", **asdict(conditions[0]))
            writer.write("phase", ordinal=0, phase=LAUNCHING)
            writer.write("phase", ordinal=0, phase=CHECKING)
            writer.write("condition", **asdict(conditions[1]))
        entry = {"outcome": MEASURED, "repeats": len(durations_ns), "doubt": doubt}
        entry |= {"watch": watch} if watch else {}
        writer.write("end", ordinal=0, time="t1", **entry)
        times = {"stop_s": 0.1, "read_s": 0.1, "write_s": 0.1}
        writer.write("window", slice="slice.csv", sha256=sha256, ordinals=[0], **times)
        report = SessionReport(Ending.COMPLETE, "", None, 1.0, "")
        return collect_session(spec, tmp_path, report, PROVENANCE).measurements

    return collect_of


def _with_counters(path, counters):
    """The counters of every launch, as msprof writes them; the sha256 of the file."""
    header, *rows = csv.reader(path.read_text().splitlines())
    for row in rows:
        for name, value in counters.items():
            row[header.index(name)] = str(value)
    path.write_bytes(table_bytes(header, rows))
    return sha256_hex(path.read_bytes())


@pytest.fixture
def measured(collected):
    def measure(*durations_ns, **more):
        (measurement,) = collected(*durations_ns, **more)
        return measurement

    return measure


def test_possible_duration_is_ok(measured):
    fine = measured(500_000, 510_000, 505_000)
    assert fine.outcome is Outcome.OK and fine.is_good
    assert fine.timing.mean_us == pytest.approx(505.0)


def test_repeats_without_one_duration_are_not_shown(measured, monkeypatch):
    """Three of five at 500 us and two at 5,000 have no mean of 500 us with a narrow interval, where
    so few repeats count."""
    monkeypatch.setattr(gates, "_LEAST_OUTLIERS", 2)
    refused = measured(500_000, 5_000_000, 501_000, 5_001_000, 502_000)
    assert not refused.is_good and is_suspect(refused)
    assert gate_of_outcome(refused.outcome, refused.reason) == "outliers"
    assert (refused.n_accepted, refused.timing.outlier_share) == (3, 0.4)
    assert refused.timing.untrimmed_us == pytest.approx(2300.8)

    # Next to another program it is disturbed, which ranks below any other measurement.
    series = (500_000, 5_000_000, 501_000, 5_001_000, 502_000)
    busy = measured(*series, watch=[[[5, 20_000, 15_000]], 0, 0])
    assert busy.is_good and busy.is_disturbed and is_suspect(busy)
    assert {"disturbed", "outliers"} <= set(map(gate_of_warning, busy.warnings))

    warned = measured(500_000, 5_000_000, 501_000, 503_000, 502_000)
    assert warned.is_good and not is_suspect(warned)
    assert "outliers" in map(gate_of_warning, warned.warnings)


def test_profiler_floor_is_recorded(collected):
    idle = [(IDLE_OPERATOR, {}, 50 + at % 3) for at in range(32)]
    (one,) = collected(500_000, 510_000, 505_000, idle=idle)
    assert one.profiler_floor_us == 0.05
    (two,) = collected(500_000, 510_000, 505_000, idle=idle, name="aten::mul and 2 more")
    assert two.profiler_floor_us == 0.15  # each of three operators has a separate one
    (unknown,) = collected(500_000, 510_000, 505_000, idle=idle[:9])
    assert unknown.profiler_floor_us == 0.0
    marks = [({"Input Shapes": "3,7,3,1,1"}, 900 + at) for at in range(20)]
    on_a_gpu = replace(SPEC, backend="cuda")
    rows = [("OpmeterSentinel", *mark) for mark in marks]
    (kernel,) = collected(500_000, 510_000, 505_000, idle=rows, spec=on_a_gpu)
    assert kernel.profiler_floor_us == pytest.approx(0.902, abs=0.001)


def test_mean_below_the_lower_bound_is_implausible_and_kept(measured):
    short = measured(1, 1, 1)
    assert short.outcome is Outcome.IMPLAUSIBLE and not short.is_good
    assert short.timing.mean_us == 0.001 and short.n_accepted == 3
    assert gate_of_outcome(short.outcome, short.reason) == "floor"
    assert names(short.reason, "0.001 us") and " 182.7" in short.reason


def test_lower_bound_is_that_of_the_stack(measured):
    assert measured(100_000, 100_000, 100_000).outcome is Outcome.IMPLAUSIBLE


def test_measured_peaks_of_a_machine_raise_its_lower_bound(measured):
    cpu = Stack("CPU_x_2t", "2.13", details=(("flags", "avx512f"), ("threads", "2")))
    peaks = MachinePeaks(cpu, 4e11, 1e12, 3e11, 4e10, "now")
    spec = replace(SPEC, stack=cpu)
    # 2 * 4096^3 operations: half of what they take at 1e12 a second.
    assert measured(*[59_000_000] * 3, spec=spec).outcome is Outcome.OK
    refused = measured(*[60_000_000] * 3, spec=replace(spec, peaks=peaks))
    assert refused.outcome is Outcome.IMPLAUSIBLE
    assert gate_of_outcome(refused.outcome, refused.reason) == "floor"
    assert names(refused.reason, "60000 us", "68719.5 us", "opmeter selftest")
    assert measured(*[70_000_000] * 3, spec=replace(spec, peaks=peaks)).outcome is Outcome.OK


def test_undescribed_device_may_be_faster_than_a_known_one(measured):
    fast = measured(100_000, 100_000, 100_000, spec=replace(SPEC, stack=None))
    assert fast.outcome is Outcome.OK


@pytest.mark.parametrize("name", ["aicore_time(us)", "aiv_time(us)"])
def test_launch_shorter_than_its_core_time_is_implausible(measured, name):
    at_work = measured(500_000, 500_000, 500_000, counted={name: 504.5})
    assert at_work.outcome is Outcome.OK and dict(at_work.counters)[name] == 504.5
    anothers = measured(500_000, 500_000, 500_000, counted={name: 700.0})
    assert anothers.outcome is Outcome.IMPLAUSIBLE and anothers.timing.mean_us == 500.0
    assert gate_of_outcome(anothers.outcome, anothers.reason) == "cores at work"
    assert names(anothers.reason, "500 us", name, 700)


@pytest.mark.parametrize(("ns", "gate"), [(0, "no duration"), (61_000_000_000, "limit")])
def test_launch_of_zero_time_or_beyond_its_limit_makes_no_timing(measured, ns, gate):
    odd = measured(500_000, ns, 505_000)
    assert odd.outcome is Outcome.IMPLAUSIBLE and odd.timing is None
    assert gate_of_outcome(odd.outcome, odd.reason) == gate


def test_repeats_that_waited_for_a_core_are_excluded(measured):
    waited = measured(900_000, 8_000_000, 910_000, watch=[[[1, 950, 0], [2, 9000, 4000]], 0, 2])
    assert waited.timing.mean_us == 900.0
    assert (waited.n_observed, waited.n_accepted) == (3, 1)
    assert waited.is_good and not waited.is_disturbed
    assert (waited.disturbance.watched, waited.disturbance.clean) == (3, 1)
    (warning,) = (one for one in waited.warnings if gate_of_warning(one) == "disturbed")
    assert sorted(re.findall(r"\d+", warning)) == ["1", "3", "3"]


def test_all_repeats_are_used_with_a_warning_if_every_one_waited(measured):
    waited = measured(8_000_000, 8_000_000, 8_000_000, watch=[[[3, 24000, 12000]], 0, 9])
    assert waited.timing.mean_us == 8000.0 and waited.is_good and waited.is_disturbed
    (warning,) = waited.warnings
    assert gate_of_warning(warning) == "disturbed" and names(warning, 3, "threads", 50)


GPU = replace(SPEC, backend="cuda", stack=None)
COOL = Condition(clock_mhz=1980.0, temperature_c=60.0, held=(), others=0)
HOT = replace(COOL, clock_mhz=1200.0, temperature_c=92.0, held=(ClockLimit.THERMAL,))


def test_repeats_of_a_throttled_gpu_are_used_with_a_warning(measured):
    hot = measured(500_000, 510_000, 505_000, spec=GPU, conditions=(COOL, HOT))
    assert hot.is_good and hot.is_disturbed and hot.n_accepted == 3
    (warning,) = hot.warnings
    assert gate_of_warning(warning) == "disturbed" and names(warning, 3, "power", "clock", 61)
    assert (hot.opened.clock_mhz, hot.closed.clock_mhz) == (1980.0, 1200.0)
    assert hot.closed.temperature_c == 92.0
    cool = measured(500_000, 510_000, 505_000, spec=GPU, conditions=(COOL, COOL))
    assert not cool.is_disturbed and cool.disturbance.watched == 3 and cool.warnings == ()


@pytest.mark.parametrize(("cache", "share"), [("warm", 0.0), ("cold", None)])
def test_launch_gaps_of_a_gpu_are_recorded_only_with_a_complete_recording(measured, cache, share):
    spec = replace(GPU, measure=replace(GPU.measure, cache=cache))
    reported = measured(500_000, 510_000, spec=spec, conditions=(COOL, COOL)).disturbance
    assert reported.launch_gap_share == share
    alone = measured(500_000, 510_000, spec=spec).disturbance
    assert alone == (None if share is None else Disturbance(0, 0, launch_gap_share=share))


def test_clock_of_a_cpu_disturbs_nothing(measured):
    throttled = measured(500_000, 510_000, 505_000, conditions=(COOL, HOT))
    assert throttled.disturbance is None and throttled.closed.clock_mhz == 1200.0


def test_bimodal_series_has_a_warning(measured):
    spec = replace(SPEC, measure=MeasureSettings(repeat_count=12))
    modal = measured(*[500_000, 502_000, 504_000] * 3, 700_000, 702_000, 704_000, spec=spec)
    assert modal.is_good
    dropped, warning = modal.warnings
    assert gate_of_warning(dropped) == "outliers" and names(dropped, "3 of 12", "552 us")
    assert gate_of_warning(warning) == "two modes" and names(warning, 25, "702 us", "502 us")


def test_bimodal_series_without_spread_has_a_warning(measured):
    spec = replace(SPEC, measure=MeasureSettings(repeat_count=12))
    modal = measured(*[500_000] * 9, *[700_000] * 3, spec=spec)
    assert modal.is_good
    dropped, warning = modal.warnings
    assert gate_of_warning(dropped) == "outliers" and names(dropped, "3 of 12", "550 us")
    assert gate_of_warning(warning) == "two modes" and names(warning, 25, "700 us", "500 us")


def test_quiet_session_is_not_disturbed(measured):
    quiet = measured(500_000, 510_000, 505_000, watch=[[[3, 1600, 4]], 0, 0])
    assert not quiet.is_disturbed and quiet.n_accepted == 3 and quiet.warnings == ()


def with_requested_core(core):
    record = CaseRecord(PRODUCT.kernel_type, {**PRODUCT.cells, ACCELERATOR_CORE: core}, {})
    return record, replace(SPEC, stack=None, cases=(SessionCase(record, 1.0, 60.0),))


@pytest.mark.parametrize(
    ("requested", "ran"),
    [("AI_CORE", "AI_CPU"), ("AI_CPU", "AI_VECTOR_CORE"), ("MIX_AIC", "AI_CPU")],
)
@pytest.mark.parametrize("ns", [500_000, 0])
def test_result_of_the_ai_cpu_is_recorded_apart_from_that_of_a_core(collected, requested, ran, ns):
    record, spec = with_requested_core(requested)
    answer, filed = collected(ns, 510_000, 505_000, spec=spec, core=ran)
    assert (answer.case_id, answer.outcome) == (record.case_id, Outcome.SUBSTITUTED)
    assert answer.timing is None and "Accelerator Core" in answer.reason
    other = as_ran(record, PRODUCT.kernel_type, "dynamic", ran)
    assert (filed.case_id, filed.core, filed.asked) == (other.case_id, ran, record.case_id)
    assert filed.outcome is (Outcome.OK if ns else Outcome.IMPLAUSIBLE)
    assert other.case_id != record.case_id


@pytest.mark.parametrize(
    ("requested", "ran"),
    [("AI_CORE", "MIX_AIC"), ("AI_CPU", "N/A"), ("", "AI_CPU"), ("AI_CPU",) * 2],
)
def test_unspecified_cores_match_the_requested_case(measured, requested, ran):
    record, spec = with_requested_core(requested)
    answer = measured(500_000, 510_000, 505_000, spec=spec, core=ran)
    assert (answer.case_id, answer.outcome) == (record.case_id, Outcome.OK)


def test_wrong_output_precedes_an_implausible_duration(measured):
    gated = measured(500_000, 510_000, doubt="not finite")
    assert (gated.outcome, gated.reason) == (Outcome.GATED, "not finite")
