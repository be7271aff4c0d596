"""The identity of kernels: the stock torch_npu under msprof, on a CANN that converts calls on
request. No duration is recorded under a case whose kernel did not run, and each is recorded under
what the profiler recorded.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from collector.measuring.batches import is_final
from collector.model.measurement import Outcome, Proof
from collector.model.record import CaseRecord
from collector.replay.results import SessionResult
from tests.npu.fakecann.faults import Fault
from tests.npu.test_npu_sessions import Recorded, about, bench_in, session
from tests.unit.collector.naming import names
from tests.unit.collector.replay.replay_cases import case_record

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

SORT = case_record("Sort", "16,64", "16,64;16,64", "DT_BF16")
SORT = replace(SORT, cells={**SORT.cells, "Output Data Types": "DT_BF16;INT32"})
OUTER = case_record("MatMulV2", "48,1;1,32", "48,32", "DT_BF16")
WIDE = case_record("ConcatD", ";".join(["4,8"] * 40), "160,8")
ABS = case_record("Abs", "12,64", "12,64")
PUT = case_record("IndexPutV2", "20,8;6,8;1;1;6", "20,8")
PUT = replace(PUT, cells={**PUT.cells, "Input Data Types": "FLOAT;FLOAT;INT64;INT64;INT64"})
STRIDED = case_record("AsStrided", "768;3;3;1", "2,3,64")
STRIDED = replace(STRIDED, cells={**STRIDED.cells, "Input Data Types": "FLOAT;INT64;INT64;INT64"})
SCATTER = case_record("ScatterElementsV2", "20,6;5,6;5,6", "20,6")
SCATTER = replace(SCATTER, cells={**SCATTER.cells, "Input Data Types": "FLOAT;INT64;FLOAT"})
CASES = [SORT, OUTER, WIDE, ABS, PUT, STRIDED, SCATTER]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    spec = session(*CASES)
    folder = tmp_path_factory.mktemp("ran")
    with pytest.MonkeyPatch.context() as patch:
        report, result = bench_in(folder, patch).run(spec)
    return Recorded(spec, folder / "session_1", report, result)


def again(folder: Path, ran: Recorded, *faults: Fault) -> SessionResult:
    """Return the results of the session, had CANN converted its calls in this way."""
    with pytest.MonkeyPatch.context() as patch:
        bench = bench_in(folder, patch)
        bench.faults(*faults)
        return bench.export_again(ran)


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory, ran: Recorded) -> SessionResult:
    """Each of six kernels gets other arguments, as CANN does on an NPU."""
    ways = {
        "Sort": "sort_in_float",
        "IndexPutV2": "sorted_put",
        "ScatterElementsV2": "turned_scatter",
        "MatMulV2": "mul_for_k1",
        "ConcatD": "wide_concat",
        "Abs": "transposes",
    }
    faults = [Fault("between", to=way, kernel=kernel) for kernel, way in ways.items()]
    return again(tmp_path_factory.mktemp("changed"), ran, *faults)


def test_recorded_shapes_prove_the_identity_and_missing_ones_do_not(ran):
    found = {m.kernel_type: m for m in ran.result.measurements}
    assert {m.outcome for m in found.values()} == {Outcome.OK}, ran.result.measurements
    proofs = {kernel: m.identity for kernel, m in found.items()}
    assert proofs.pop("AsStrided") is Proof.UNVERIFIED
    assert set(proofs.values()) == {Proof.PROVED} and len(proofs) == 6


def test_identity_is_unverified_without_shapes(ran, tmp_path):
    (abs_,) = about(ABS, again(tmp_path, ran, Fault("hide_shapes", kernel="Abs")))
    assert (abs_.outcome, abs_.identity) == (Outcome.OK, Proof.UNVERIFIED)


def test_bf16_sort_computed_in_float_is_a_float_sort(ran, changed):
    requested, filed = executed(changed, SORT)
    assert names(requested.reason, "input 1", "16,64 FLOAT ND", "16,64 DT_BF16 ND")
    assert filed.case_id == with_cells(SORT, filed).case_id
    assert dict(filed.recorded)["Input Data Types"] == "FLOAT"
    assert [(c.kernel_type, c.count) for c in filed.companions] == [
        ("Cast", 2 * (filed.n_observed + len_of_warm_ups(ran)))
    ]


def test_indices_narrowed_by_cann_are_those_of_the_kernel(changed):
    _, filed = executed(changed, PUT)
    assert dict(filed.recorded)["Input Data Types"].endswith(";INT32")


def test_scatter_along_the_first_dimension_is_recorded_with_the_transposed_tensor(changed):
    requested, filed = executed(changed, SCATTER)
    assert names(requested.reason, "input 1", "6,20 FLOAT ND", "20,6 FLOAT ND")
    assert dict(filed.recorded)["Input Shapes"] == '"6,20;6,5;6,5"'
    assert dict(filed.recorded)["Input Data Types"] == "FLOAT;INT32;FLOAT"
    casts, transposes = filed.companions  # in order of their names
    assert (casts.kernel_type, transposes.kernel_type) == ("Cast", "Transpose")
    assert transposes.count == 4 * casts.count


def test_product_over_one_element_is_recorded_as_mul(changed):
    requested, filed = executed(changed, OUTER)
    assert names(requested.reason, "Mul", "MatMulV2")
    assert (filed.kernel_type, filed.identity) == ("Mul", Proof.PROVED)


def test_several_launches_per_call_are_a_substitution_without_retry(changed):
    (requested,) = about(WIDE, changed)
    assert requested.outcome is Outcome.SUBSTITUTED and requested.timing is None
    assert names(requested.reason, 2, "ConcatD")
    assert is_final([requested.outcome])


def test_transposed_or_split_input_gives_no_duration_of_the_case(ran, changed, tmp_path):
    requested, filed = executed(changed, ABS)
    assert names(requested.reason, "input 1", "64,12 FLOAT ND", "12,64 FLOAT ND")
    assert filed.case_id != ABS.case_id
    (requested,) = about(ABS, again(tmp_path, ran, Fault("between", to="splits", kernel="Abs")))
    assert names(requested.reason, 2, "Abs")


def test_case_whose_kernel_ran_as_requested_keeps_its_duration(ran, changed):
    (before,), (after,) = about(STRIDED, ran.result), about(STRIDED, changed)
    assert (after.outcome, after.timing.mean_us) == (Outcome.OK, before.timing.mean_us)


def executed(result: SessionResult, record: CaseRecord):
    """Return the result of the case, and the measurement of the kernel that ran in its place."""
    requested, filed = about(record, result)
    assert (requested.outcome, requested.timing) == (Outcome.SUBSTITUTED, None)
    assert requested.recorded == filed.recorded != ()
    assert filed.outcome is Outcome.OK and filed.asked == record.case_id
    return requested, filed


def with_cells(record: CaseRecord, filed) -> CaseRecord:
    return replace(record, cells={**record.cells, **dict(filed.recorded)})


def len_of_warm_ups(ran: Recorded) -> int:
    """Return the launches before the counted ones, as many as those of a companion."""
    rows = ran.directory / "op_summary.csv"
    launches = sum(",Sort," in line for line in rows.read_text().splitlines())
    return launches - 5
