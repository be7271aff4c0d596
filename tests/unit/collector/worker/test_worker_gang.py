"""The shard of a gang: measurements of its ranks become certificates, and failures are reported."""

import csv
import json
import threading
from dataclasses import replace

import psutil
import pytest
import zstandard

from collector.comm.gang import GangFailed
from collector.comm.kernels import OTHER_TENSORS
from collector.comm.rank_files import TOO_LARGE, CaseSeen
from collector.comm.timing import RankTimes
from collector.measuring.instrument import SessionSettings
from collector.model.measurement import Outcome, Proof, Provenance
from collector.model.plan import Limits, MeasureSettings, ShardCase
from collector.model.record import CaseRecord
from collector.model.stack import Runtime, Stack
from collector.model.vocabulary import EP_SIZE
from collector.quality.disturbances import gang_disturbance
from collector.quality.gates import gate_of_warning
from collector.ranks.collective import Collective, CollectiveCase
from collector.ranks.distribution import COMBINE, DISPATCH, DistributeCall
from collector.ranks.experts import IMBALANCE, KERNEL, ExpertCall
from collector.ranks.gangs import ranks_needed
from collector.ranks.topology import Grid
from collector.replay.seal import unseal
from collector.worker.gang_instrument import (
    GangInstrument,
    GangSession,
    bench_of,
    calls_a_round,
    gang_measurements,
    start_of,
)
from tests.unit.collector.naming import names
from tests.waiting import wait_for

STACK = Stack(device="CPU_test_2t", torch="2.13.0+cpu")
GRID = Grid((2, 2))
PROVENANCE = Provenance(
    "c", 1, "h", 0, "s", "a", 1, STACK.stack_id, "node", None, 0, Runtime.REAL, None, "1", "raw"
)


def requested(**changes: object) -> CollectiveCase:
    one = CollectiveCase(Collective("all_reduce", 1024, "float32", 2, 1), GRID, 2, "event")
    return replace(one, **changes)


def session(*cases: CollectiveCase, world: int = 4) -> GangSession:
    groups = tuple(
        found if case.collective.together else found[:1]
        for case in cases
        for found in [GRID.groups(2, 1, world)]
    )
    records = tuple(case.record() for case in cases)
    facts = tuple((("known", 1.0),) for _ in cases)
    return GangSession(records, groups, facts, PROVENANCE, STACK, Limits(), "began", "ended")


def seen(case: int, round_: int, *ranks: RankTimes, left_out: str = "", wrong=()) -> CaseSeen:
    return CaseSeen(round_, case, ranks, left_out, tuple(wrong))


def times(rank: int, starts: list[float], took: list[float]) -> RankTimes:
    return RankTimes(rank, tuple(starts), tuple(took))


ALONE = (times(0, [0.0, 100.0, 200.0], [50.0] * 3), times(1, [10.0, 110.0, 210.0], [30.0] * 3))


@pytest.mark.fast
class TestCertificates:
    def test_call_lasts_from_its_last_arrival_to_its_last_end(self) -> None:
        (made,) = gang_measurements(
            session(requested()), [seen(0, 0, *ALONE), seen(0, 1, *ALONE)], {}
        )
        assert made.outcome is Outcome.OK
        assert made.timing is not None
        assert made.timing.median_us == 40.0  # rank 1 started at 10, rank 0 ended at 50
        assert (made.n_expected, made.n_accepted) == (6, 6)
        counters = dict(made.counters)
        assert (counters["skew_us"], counters["rounds"]) == (10.0, 2.0)
        assert counters["known"] == 1.0
        assert any(names(warning, 2, 3) for warning in made.warnings)

    def test_concurrent_groups_have_their_median_and_slowest_duration(self) -> None:
        case = requested(ranks=4, collective=replace(requested().collective, together=True))
        slow = (times(2, [0.0] * 3, [90.0] * 3), times(3, [0.0] * 3, [60.0] * 3))
        (made,) = gang_measurements(session(case), [seen(0, 0, *ALONE, *slow)], {})
        assert made.timing is not None
        assert made.timing.median_us == 65.0  # of 40 and 90
        assert dict(made.counters)["concurrent_slowest_us"] == 90.0
        assert dict(made.counters)["concurrent_groups"] == 2.0

    def test_wrong_result_is_gated_and_not_good(self) -> None:
        rounds = [seen(0, 0, *ALONE), seen(0, 1, *ALONE, wrong=[1])]
        (made,) = gang_measurements(session(requested()), rounds, {})
        assert made.outcome is Outcome.GATED and names(made.reason, "rank 1")
        assert not made.is_good

    def test_call_too_large_for_a_rank_is_out_of_memory(self) -> None:
        reason = f"{TOO_LARGE} 3 MiB a rank can have"
        (made,) = gang_measurements(session(requested()), [seen(0, 0, left_out=reason)], {})
        assert (made.outcome, made.reason) == (Outcome.OOM, reason)

    def test_window_without_its_records_is_retried(self) -> None:
        (made,) = gang_measurements(session(requested()), [seen(0, 0, left_out="3 of 4 rows")], {})
        assert made.outcome is Outcome.PROFILER_LOST

    def test_kernel_with_other_tensors_is_substituted(self) -> None:
        reason = f"{OTHER_TENSORS} in rank 1: input 1: 4 FLOAT ND"
        (made,) = gang_measurements(session(requested()), [seen(0, 0, left_out=reason)], {})
        assert (made.outcome, made.reason) == (Outcome.SUBSTITUTED, reason)

    def test_proof_is_that_of_the_weakest_round(self) -> None:
        reported = [replace(seen(0, at, *ALONE), identity="proved") for at in range(2)]
        for least, expected in (("proved", Proof.PROVED), ("unverified", Proof.UNVERIFIED)):
            rounds = [reported[0], replace(reported[1], identity=least)]
            (made,) = gang_measurements(session(requested()), rounds, {})
            assert made.identity is expected

    def test_end_before_the_beginning_is_implausible(self) -> None:
        early = (times(0, [0.0], [5.0]), times(1, [50.0], [-10.0]))
        (made,) = gang_measurements(session(requested()), [seen(0, 0, *early)], {})
        assert made.outcome is Outcome.IMPLAUSIBLE
        assert made.timing is None

    def test_environment_of_the_node_is_recorded_as_a_warning(self) -> None:
        (made,) = gang_measurements(
            session(requested()), [seen(0, 0, *ALONE)], {"HCCL_BUFFSIZE": "200"}
        )
        assert any(names(warning, "HCCL_BUFFSIZE=200") for warning in made.warnings)

    def test_session_with_other_programs_is_disturbed(self) -> None:
        assert gang_disturbance(0.15) == ""
        disturbed = replace(session(requested()), disturbed=gang_disturbance(0.4))
        (made,) = gang_measurements(disturbed, [seen(0, 0, *ALONE)], {})
        assert "disturbed" in map(gate_of_warning, made.warnings)

    def test_cases_without_a_round_have_no_result_yet(self) -> None:
        other = requested(collective=replace(requested().collective, message_bytes=2048))
        (made,) = gang_measurements(session(requested(), other), [seen(1, 0, *ALONE)], {})
        assert made.case_id == other.record().case_id


@pytest.mark.fast
def test_rounds_together_have_the_calls_of_the_plan() -> None:
    assert calls_a_round(MeasureSettings(min_repeats=3, max_repeats=100)) == (1, 34)
    assert calls_a_round(MeasureSettings(repeat_count=10)) == (4, 4)


def expert_record(imbalance: str = "") -> CaseRecord:
    """A call of 8 tokens to 2 of 4 experts on 2 ranks, in the form of a table row."""
    cells = dict(ExpertCall(8, 16, 8, 4, 2, ep_size=2).cells)
    extra = {EP_SIZE: cells.pop(EP_SIZE), **({IMBALANCE: imbalance} if imbalance else {})}
    return CaseRecord(KERNEL, {"OP State": "", "Accelerator Core": "", **cells}, extra)


def distribute_record(kernel: str) -> CaseRecord:
    """Tokens sent to 2 of 4 experts on 2 ranks, or their results sent back."""
    cells = dict(DistributeCall(kernel, 8, 16, 4, 2, ep_size=2, capacity=8).cells)
    extra = {EP_SIZE: cells.pop(EP_SIZE)}
    return CaseRecord(kernel, {"OP State": "", "Accelerator Core": "", **cells}, extra)


@pytest.mark.fast
class TestStarts:
    def test_start_has_one_family_of_kernels(self) -> None:
        sent, back = distribute_record(DISPATCH).case, distribute_record(COMBINE).case
        assert start_of(sent) == start_of(back) != start_of(expert_record().case)

    def test_collectives_share_a_start_if_their_environment_is_equal(self) -> None:
        plain, other = requested().record().case, requested(environment="GLOO_TEST=1").record().case
        assert start_of(plain) != start_of(other) != start_of(expert_record().case)
        assert start_of(expert_record().case) == start_of(expert_record("0.5").case)

    def test_bench_of_experts_records_the_imbalance_of_its_loads(self) -> None:
        cases = [expert_record().case, expert_record("1").case]
        bench = bench_of(cases, "cpu", 2, MeasureSettings())
        assert bench.groups == (((0, 1),), ((0, 1),))
        even, uneven = (dict(facts)["imbalance"] for facts in bench.facts)
        assert even < uneven
        on_npu = bench_of(cases, "npu", 2, MeasureSettings())
        assert (bench.plan.mode, on_npu.plan.mode) == ("event", "kernel")
        reported = [dict(one.facts[0])["timed_by_kernels"] for one in (bench, on_npu)]
        assert reported == [0.0, 1.0]


@pytest.mark.fast
def test_partly_measured_case_of_a_session_is_measured_again(tmp_path, monkeypatch) -> None:
    """One case has all its rounds, the other does not."""

    class Ended:
        groups, facts = (((0, 1),),) * 2, ((), ())

        def run(self, start, folder, patience_s, tick):
            ranks = [[0, [0.0], [5.0]], [1, [0.0], [6.0]]]
            lines = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
            seen = {"ranks": ranks, "left_out": "", "wrong": []}
            reported = [json.dumps({"round": r, "case": c, **seen}) for r, c in lines]
            (folder / "results.jsonl").write_text("".join(f"{line}\n" for line in reported))
            (folder / "torchrun.log").write_text("")
            tick(len(lines))
            raise GangFailed("rank 1 was killed")

    monkeypatch.setattr("collector.worker.gang_instrument.bench_of", lambda *_: Ended())
    other = requested(collective=replace(requested().collective, message_bytes=2048))
    found, heard = measure(tmp_path, [requested(), other], threading.Event())
    assert [m.case_id for m in found.measurements] == [requested().record().case_id]
    assert (found.began, found.reason) == (True, "rank 1 was killed")
    assert heard[-1] == (1, other.record().case.describe())


@pytest.mark.fast
def test_stacks_of_hung_ranks_are_kept_without_measurements(tmp_path, monkeypatch) -> None:
    class Hung:
        groups, facts = (((0, 1),),), ((),)

        def run(self, start, folder, patience_s, tick):
            (folder / "rank-1.jsonl").write_text('{"step": "first"}\n')
            (folder / "rank-0.stacks").write_text("in all_reduce\nin main\n")
            (folder / "rank-1.stacks").write_text("")
            raise GangFailed("rank 1 does not answer")

    monkeypatch.setattr("collector.worker.gang_instrument.bench_of", lambda *_: Hung())
    found, _ = measure(tmp_path, [requested()], threading.Event())
    assert (found.measurements, found.reason) == ((), "rank 1 does not answer")
    (raw,) = found.raw
    reported = [json.loads(line) for line in raw.journal.read_text().splitlines()]
    assert reported == [
        {"file": "rank-1.jsonl", "line": '{"step": "first"}'},
        {"file": "rank-0.stacks", "line": "in all_reduce"},
        {"file": "rank-0.stacks", "line": "in main"},
    ]


def measure(tmp_path, cases: list[CollectiveCase], stop: threading.Event):
    return measure_records(tmp_path, [case.record() for case in cases], stop)


def processes_in(folder) -> list[int]:
    """The processes whose command line contains a folder."""
    found = psutil.process_iter(["pid", "cmdline"])
    return [one.pid for one in found if str(folder) in " ".join(one.info["cmdline"] or ())]


def measure_records(tmp_path, records: list[CaseRecord], stop: threading.Event):
    settings = SessionSettings("cpu", STACK, MeasureSettings(budget_s=0.02), Limits())
    heard: list[tuple[int, str]] = []
    ranks = max(ranks_needed(record.case) for record in records)
    instrument = GangInstrument(
        settings, ranks, tmp_path, stop, lambda *reported: heard.append(reported)
    )
    found = instrument.measure([ShardCase(record, 0.1) for record in records], PROVENANCE)
    return found, heard


def reread_records(tmp_path, records: list[CaseRecord], raw):
    """The results that follow from the stored records of a session alone."""
    settings = SessionSettings("cpu", STACK, MeasureSettings(budget_s=0.02), Limits())
    ranks = max(ranks_needed(record.case) for record in records)
    again = GangInstrument(settings, ranks, tmp_path, threading.Event(), lambda *_: None)
    objects = (zstandard.compress(path.read_bytes()) for path in (raw.summary, raw.journal))
    sealed = unseal(*objects, key="journal")
    cases = [ShardCase(record, 0.1) for record in records]
    return again.reread(cases, {"": sealed}, PROVENANCE)


@pytest.mark.slow
@pytest.mark.torch
class TestRanks:
    def test_cases_of_one_start_get_the_result_of_all_ranks(self, tmp_path) -> None:
        plain, other = requested(), requested(environment="GLOO_TEST=1")
        found, heard = measure(tmp_path, [plain, other], threading.Event())
        assert found.reason == ""
        assert [m.case_id for m in found.measurements] == [plain.record().case_id]
        (made,) = found.measurements
        assert made.outcome is Outcome.OK
        (raw,) = found.raw
        with raw.summary.open() as rows:
            calls = list(csv.DictReader(rows))
        assert len(calls) == 2 * made.n_observed
        assert {row["rank"] for row in calls} == {"0", "1"}
        *lines, _ = raw.journal.read_text().splitlines()
        journals = {json.loads(line)["file"] for line in lines}
        assert {"rank-0.jsonl", "rank-1.jsonl"} <= journals
        assert 0 < found.usage.useful_us <= found.usage.busy_us <= found.usage.wall_s * 1e6
        assert heard[-1][0] == 1
        reread = reread_records(tmp_path, [plain.record(), other.record()], raw)
        assert (reread.measurements, reread.usage.busy_us) == ((made,), found.usage.busy_us)

    @pytest.mark.parametrize(
        "records",
        [
            [expert_record(), expert_record("0.5")],
            [distribute_record(DISPATCH), distribute_record(COMBINE)],
        ],
        ids=["fused", "distributed"],
    )
    def test_expert_exchanges_are_measured_like_collectives(self, tmp_path, records) -> None:
        found, _ = measure_records(tmp_path, records, threading.Event())
        assert found.reason == ""
        assert [m.case_id for m in found.measurements] == [one.case_id for one in records]
        (raw,) = found.raw
        assert reread_records(tmp_path, records, raw).measurements == found.measurements
        for made in found.measurements:
            assert made.outcome is Outcome.OK
            assert {"imbalance", "rank_imbalance", "skew_us"} <= dict(made.counters).keys()
            assert dict(made.counters)["timed_by_kernels"] == 0.0  # of a CPU, by events

    def test_impossible_routing_is_rejected_without_a_start(self, tmp_path) -> None:
        records = [expert_record(), expert_record("50")]
        found, _ = measure_records(tmp_path, records, threading.Event())
        (made,) = found.measurements
        assert (made.case_id, made.outcome) == (records[1].case_id, Outcome.REJECTED)
        assert "imbalance" in made.reason and made.provenance.raw_key is None
        assert not found.raw

    @pytest.mark.usefixtures("real_starts")  # ranks that started now would measure
    def test_stopped_gang_ends_immediately(self, tmp_path) -> None:
        stop = threading.Event()
        stop.set()
        found, _ = measure(tmp_path, [requested()], stop)
        assert found.reason and not found.measurements
        wait_for(lambda: not processes_in(tmp_path))  # also of ranks that had not started yet
