"""A complete campaign of 600 mixed cases on the fake NPU: one in twenty has a fault, one in twenty
is cast, transposed or split before its kernel, and one in twenty is run by a custom OPP that has a
function with CANN's name.

The fake's durations follow from the call alone. The expected duration of a case is found by
launching it once, alone, outside of every session; the campaign must give the same duration or
none.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from collector.codec.canonical import sha256_hex
from collector.database.commits import find_head
from collector.database.query import case_results
from collector.database.snapshot import load_state
from collector.database.verify import find_problems
from collector.engine.calls import Recorded
from collector.engine.kernels import kernel_of
from collector.model import keys
from collector.model.measurement import Library
from collector.model.record import CaseRecord, write_table
from collector.model.row import value_of
from collector.model.vocabulary import LIBRARY
from collector.ops.refusals import requires_950
from collector.ops.registry import all_ops
from collector.ops.releases import launched_by
from collector.store import open_store
from jobs.planning.sources import completed_records
from tests.fixtures import op_rows
from tests.fixtures.op_rows import rows_alone
from tests.npu.fakecann.between import Part, is_struck, parts_of
from tests.npu.fakecann.build import npu_host
from tests.npu.fakecann.faults import Fault, struck, write_faults
from tests.npu.fakecann.libraries import answered_by, write_custom_opp
from tests.npu.fakecann.truth import truth_us
from tests.npu.golden import own_launches
from tests.npu.many_cases import many
from tests.npu.replayed import Replayed, replay

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

CASES = int(os.environ.get("OPMETER_NPU_CASES") or 600)
_ROOT = Path(__file__).parents[2]
_CAMPAIGN = """\
campaign: faulty
sources: [{{cases: {table}}}]
target: here
backend: npu
devices: 2
measure: {{repeats: 3}}
shards: {{target_s: 240, session_s: 60}}
limits: {{case_s: 3, memory_gb: 8}}
"""
_OF_FAULTS = ("crashed", "hung", "profiler_lost")
FAULTS = (
    Fault("lose_head", count=4),
    Fault("lose", share=0.01),
    Fault("rename", share=0.004, to="SomethingElse"),
    Fault("hide_shapes", share=0.002),
    Fault("crash", call="aclnnRmsNorm(", nth=20, times=2),
    Fault("crash", call="aclnnSort(", nth=9, times=2),
    Fault("hang", call="aclnnSoftmax(", nth=15, times=1),
    Fault("no_export", times=2),
    Fault("status", count=139, times=3),
    Fault("between", to="casts", share=0.03),
    Fault("between", to="transposes", share=0.03),
    Fault("between", to="splits", share=0.03),
)


# Kernels that a custom OPP has too; for every third case CANN's own is requested. The function of
# the last one takes one argument more than CANN's, so that it must not be called.
IN_BOTH = (
    *("MoeGatingTopKSoftmax", "MoeInitRoutingV3", "MoeReRouting", "MoeTokenPermute", "ReduceSum"),
    *("MoeTokenUnpermute", "DynamicQuant", "ApplyRotaryPosEmb", "InterleaveRope"),
    "IncreFlashAttention",
)
FOREIGN = "SwiGluGrad"
# Calls with the state of a generator, which each launch advances: the runtime gives every launch
# another duration.
SEEDED = ("RandomUniform",)


@pytest.fixture(scope="module")
def custom_opp(tmp_path_factory):
    """Return the environment that names it."""
    taken = {
        function.name: (function.arguments + "." * (kernel == FOREIGN), function.has_numbers)
        for kernel in (*IN_BOTH, FOREIGN)
        for function in launched_by(kernel)
    }
    folder = write_custom_opp(tmp_path_factory.mktemp("opp") / "vendor", taken)
    return {"ASCEND_CUSTOM_OPP_PATH": str(folder)}


@pytest.fixture(scope="module")
def cases():
    rows = [row for op in all_ops() if op.library != "vllm-ascend" for row in rows_alone(op.kernel)]
    return list(_with_library_cann(completed_records(many(rows, CASES))))


@pytest.fixture(scope="module")
def of_950(cases) -> set[str]:
    """The cases that this device refuses."""
    return {record.case_id for record in cases if requires_950(record.case)}


def _with_library_cann(records) -> Iterator[CaseRecord]:
    number = 0
    for record in records:
        if record.kernel_type in IN_BOTH:
            number += 1
            if number % 3 == 0:
                record = replace(record, extra={**record.extra, LIBRARY: "cann"})
        yield record


def _library(record: CaseRecord) -> Library:
    """Return the library whose kernel runs."""
    is_custom = record.kernel_type in IN_BOTH and record.extra.get(LIBRARY) != "cann"
    return Library.VLLM_ASCEND if is_custom else Library.CANN


@pytest.fixture(scope="module")
def own_calls(fake, cases, tmp_path_factory):
    """case id -> the call that launches its kernel, or None if torch_npu refuses it."""
    folder = tmp_path_factory.mktemp("rows")
    by_kernel = {}
    for row in cases:
        by_kernel.setdefault(row.kernel_type, []).append(row)
    for kernel, rows in by_kernel.items():
        (folder / f"{kernel}.csv").write_bytes(write_table(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op_rows, "FOLDER", folder)
        patch.setenv("OPMETER_OP_ROWS", str(folder))
        replayed = replay(fake, by_kernel)
    return {
        row.case_id: None if answer.error else _own(row.kernel_type, answer)
        for kernel, rows in by_kernel.items()
        for row, answer in zip(rows, replayed[kernel], strict=True)
    }


def _own(kernel: str, row: Replayed) -> Recorded | None:
    own = [call for call in own_launches(kernel, row) if kernel_of(call) == kernel]
    return own[0] if len(own) == 1 else None


def became(call: Recorded | None) -> Sequence[Part]:
    """Return the launches that CANN made of a call; none if it did what was requested."""
    if call is None:
        return ()
    orders = (fault for fault in FAULTS if fault.fault == "between")
    struck_by = (fault.to for fault in orders if is_struck(fault.to, call, fault.share))
    found = (parts_of(name, call, kernel_of(call)) for name in struck_by)
    return next(filter(None, found), ())


@pytest.fixture(scope="module")
def truths(own_calls, cases, custom_opp):
    """case id -> its duration, or None if torch_npu refuses the call; without the converted
    ones."""
    records = {record.case_id: record for record in cases if record.kernel_type not in SEEDED}
    return {
        case: None if call is None else _truth_us(call, records[case], custom_opp)
        for case, call in own_calls.items()
        if case in records and not became(call)
    }


def _truth_us(call: Recorded, record: CaseRecord, custom_opp: Mapping[str, str]) -> float:
    environment = {} if record.extra.get(LIBRARY) == "cann" else custom_opp
    return truth_us(call, answered_by(call.name, kernel_of(call), environment))


@pytest.fixture(scope="module")
def state(fake, cases, custom_opp, tmp_path_factory):
    folder = tmp_path_factory.mktemp("campaign")
    store, table = open_store(str(folder / "data")), write_table(cases)
    store.put(keys.source("faulty", sha256_hex(table)), table)
    (folder / "campaign.yaml").write_text(_CAMPAIGN.format(table=sha256_hex(table)))
    faults = write_faults(folder / "faults.json", *FAULTS, seed=5)
    env = npu_host(fake, folder, devices=2, faults=faults) | {
        "TMPDIR": str(folder),
        **custom_opp,
    }
    env["PYTHONPATH"] = os.pathsep.join((str(_ROOT), env["PYTHONPATH"]))
    command = ["run", "campaign.yaml", "--root", str(folder / "data")]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jobs.cli", *command],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    print(done.stdout)
    assert "proved" in done.stdout
    assert len(struck(faults)) > 0
    assert not find_problems(store)
    return load_state(store, find_head(store))


@pytest.fixture(scope="module")
def answered(state):
    (version,) = state.versions
    return case_results(state, version)


def test_every_case_has_a_result(answered, cases, of_950):
    assert answered.keys() >= {case.case_id for case in cases}
    outcomes = Counter(answered[case.case_id].outcome.value for case in cases)
    print(dict(outcomes))
    assert outcomes["ok"] > 0.8 * (len(cases) - len(of_950))


def test_measured_durations_equal_the_simulated_ones(state, answered, truths, of_950):
    # A kernel that ran in place of a case may be another one, with the duration of its call.
    filed = {row["case"] for row in state.measurements.to_pylist() if row["asked"]}
    measured = {
        case: found.mean_us
        for case, found in answered.items()
        if found.is_good and case not in filed
    }
    wrong = {
        case: (measured[case], us)
        for case, us in truths.items()
        if case in measured and measured[case] != pytest.approx(us, abs=1e-6)
    }
    assert not wrong
    assert len(measured.keys() & truths.keys()) > 0.85 * len(truths.keys() - of_950)


def test_every_duration_is_recorded_under_the_kernel_that_ran(state, own_calls, of_950):
    possible = {case: call for case, call in own_calls.items() if case not in of_950}
    changed = {case: became(call) for case, call in possible.items() if became(call)}
    assert len(changed) > 0.04 * len(possible)
    filed = 0
    for row in state.measurements.to_pylist():
        case = row["asked"] or row["case"]
        if case not in changed or row["outcome"] != "ok":
            continue
        parts = [part for part in changed[case] if part.kernel == row["kernel_type"]]
        recorded, mean_us = dict(value_of("recorded", row["recorded"])), float(row["mean_us"])
        assert row["asked"], f"{case} has the duration of something else"
        assert recorded in [dict(part.cells) for part in parts]
        call = own_calls[case]
        assert mean_us in [pytest.approx(part.duration_us(call), abs=1e-6) for part in parts]
        filed += 1
    assert filed > 0.3 * len(changed)  # most of the others have two launches for one


def test_every_duration_has_the_library_of_its_kernel(state, answered, cases):
    numbers = [row for row in state.measurements.to_pylist() if row["outcome"] == "ok"]
    expected = {record.case_id: _library(record) for record in cases}
    reported = [(row, row["asked"] or row["case"]) for row in numbers]
    in_both = [(row, case) for row, case in reported if row["kernel_type"] in IN_BOTH]
    assert not [row for row, case in in_both if row["library"] != expected[case]]
    by_custom = [case for _, case in reported if expected.get(case) is Library.VLLM_ASCEND]
    assert len(set(by_custom)) > 0.03 * len(cases)
    foreign = [answered[r.case_id] for r in cases if r.kernel_type == FOREIGN]
    assert foreign and {found.outcome.value for found in foreign} == {"unsupported"}


def test_case_that_torch_npu_refuses_is_not_measured(answered, truths):
    assert not [case for case, us in truths.items() if us is None and answered[case].is_good]


def test_faults_occurred_in_one_case_of_twenty(state, cases):
    failed = {
        row["case"]
        for row in state.measurements.to_pylist()
        if row["outcome"] not in ("ok", "gated")
    }
    assert len(failed) >= 0.05 * len(cases)


def test_all_measurements_have_the_fake_runtime(state):
    assert state.runtimes == {"fake"}
