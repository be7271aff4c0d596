"""What ran is what was asked: the stock torch_npu under msprof, on a CANN that is told to do
something else between a call and its kernel. Whatever it does, no number is filed under the case
that was asked for, and each is filed under what the profiler recorded.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from collector.measurement import Outcome, Proof
from collector.measuring.retries import is_answered
from collector.record import CaseRecord
from collector.replay.results import SessionResult
from tests.npu.fakecann.faults import Fault
from tests.npu.test_npu_sessions import Bench, Recorded, about, bench_in, session
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


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return bench_in(tmp_path, monkeypatch)


def test_what_the_profiler_told_is_proved_and_what_it_did_not_is_not(ran):
    told = {m.kernel_type: m for m in ran.result.measurements}
    assert {m.outcome for m in told.values()} == {Outcome.OK}, ran.result.measurements
    proofs = {kernel: m.identity for kernel, m in told.items()}
    assert proofs.pop("AsStrided") is Proof.UNVERIFIED
    assert set(proofs.values()) == {Proof.PROVED} and len(proofs) == 6


def test_without_shapes_the_type_alone_is_known(bench, ran):
    bench.faults(Fault("hide_shapes", kernel="Abs"))
    (abs_,) = about(ABS, bench.export_again(ran))
    assert (abs_.outcome, abs_.identity) == (Outcome.OK, Proof.UNVERIFIED)


def test_a_sort_of_bf16_that_cann_does_in_float_is_one_of_float(bench, ran):
    asked, filed = told(bench, ran, "sort_in_float", SORT)
    assert asked.reason.startswith("input 1: 16,64 FLOAT ND came, 16,64 DT_BF16 ND was asked for")
    assert filed.case_id == with_cells(SORT, filed).case_id
    assert dict(filed.recorded)["Input Data Types"] == "FLOAT"
    assert [(c.kernel_type, c.count) for c in filed.companions] == [
        ("Cast", 2 * (filed.n_observed + len_of_warm_ups(ran)))
    ]


def test_indices_that_cann_narrows_are_those_of_the_kernel(bench, ran):
    _, filed = told(bench, ran, "sorted_put", PUT)
    assert dict(filed.recorded)["Input Data Types"].endswith(";INT32")


def test_a_scatter_along_the_first_dimension_is_one_of_what_was_transposed(bench, ran):
    asked, filed = told(bench, ran, "turned_scatter", SCATTER)
    assert asked.reason.startswith("input 1: 6,20 FLOAT ND came, 20,6 FLOAT ND was asked for")
    assert dict(filed.recorded)["Input Shapes"] == '"6,20;6,5;6,5"'
    assert dict(filed.recorded)["Input Data Types"] == "FLOAT;INT32;FLOAT"
    casts, transposes = filed.companions  # in order of their names
    assert (casts.kernel_type, transposes.kernel_type) == ("Cast", "Transpose")
    assert transposes.count == 4 * casts.count


def test_a_product_over_one_element_is_a_number_of_mul(bench, ran):
    asked, filed = told(bench, ran, "mul_for_k1", OUTER)
    assert asked.reason == "Mul ran instead of MatMulV2"
    assert (filed.kernel_type, filed.identity) == ("Mul", Proof.PROVED)


def test_several_launches_a_call_are_told_once_and_not_tried_again(bench, ran):
    bench.faults(Fault("between", to="wide_concat"))
    (asked,) = about(WIDE, bench.export_again(ran))
    assert asked.outcome is Outcome.SUBSTITUTED and asked.timing is None
    assert asked.reason == "2 launches of ConcatD a call, which asks for one"
    assert is_answered([asked.outcome])


def test_a_transposed_or_halved_input_is_no_number_of_the_case(bench, ran):
    asked, filed = told(bench, ran, "transposes", ABS)
    assert asked.reason == "input 1: 64,12 FLOAT ND came, 12,64 FLOAT ND was asked for"
    assert filed.case_id != ABS.case_id
    bench.faults(Fault("between", to="splits", kernel="Abs"))
    (asked,) = about(ABS, again(bench, ran, "halved"))
    assert asked.reason == "2 launches of Abs a call, which asks for one"


def told(bench: Bench, ran: Recorded, what: str, record: CaseRecord):
    """The case's own answer, and the number of what ran, if CANN does this with its kernel."""
    bench.faults(Fault("between", to=what, kernel=record.kernel_type))
    asked, filed = about(record, bench.export_again(ran))
    assert (asked.outcome, asked.timing) == (Outcome.SUBSTITUTED, None)
    assert asked.recorded == filed.recorded != ()
    assert filed.outcome is Outcome.OK and filed.asked == record.case_id
    return asked, filed


def again(bench: Bench, ran: Recorded, folder: str) -> SessionResult:
    """A second export beside the first one's."""
    bench.folder = bench.folder / folder
    bench.folder.mkdir()
    return bench.export_again(ran)


def with_cells(record: CaseRecord, filed) -> CaseRecord:
    return replace(record, cells={**record.cells, **dict(filed.recorded)})


def len_of_warm_ups(ran: Recorded) -> int:
    """Launches before those that count, of which a companion has as many."""
    rows = ran.directory / "op_summary.csv"
    launches = sum(",Sort," in line for line in rows.read_text().splitlines())
    return launches - 5
