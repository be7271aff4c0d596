"""Output and results of a self-test, without a device."""

from pathlib import Path

import pytest
import yaml

from collector.codec.errors import BadInput
from collector.model import keys
from collector.model.manifest import Verified, verified_from_json, verified_to_json
from collector.model.record import read_table
from collector.model.stack import Runtime, Stack, runtime_details
from collector.model.vocabulary import is_plain_format
from collector.ops.references import decode_attention, reference_record
from collector.ops.refusals import refusal
from collector.ops.registry import all_ops, find_operator
from collector.ops.releases import verified_on, with_proved
from collector.replay.resolved_calls import ResolvedCall, ResolvedCalls, functions_in_both
from collector.store.in_memory import MemoryStore
from jobs.doctor.machine import Check
from jobs.selftest.archive import keep, read_kept
from jobs.selftest.attribution import _mixed, packaged_rows
from jobs.selftest.checks import gathered, run_checks, verdict_on_libraries
from jobs.selftest.failing_operators import find_operator as find_trouble
from tests.npu.shown_otherwise import DIFFERENT
from tests.unit.jobs.printed import missing, numbers, raises_naming

pytestmark = pytest.mark.fast

FIXTURES = Path(__file__).parents[3] / "fixtures" / "ops"
STACK = Stack("ATLAS_800_A2_313T_64G", "2.9.0", torch_npu="2.9.0", cann="8.5.0")
# Over ranks alone, or with rows of layouts.csv only.
NO_ROW = {
    *("MoeDistributeDispatchV2", "MoeDistributeCombineV2", "GroupedMatmulSwigluQuant"),
    *("ReduceSumD", "Scatter", "SplitVD"),  # of graphs, which need torchair
    *("GroupedMatmulSwigluQuantV2", "MlaPrologV2", "MlaPrologV3"),
    "QuantLightningIndexer",  # documented for A3 alone
    # of Ascend 950 alone
    *("DynamicBlockQuant", "DynamicMxQuant", "MoeDistributeCombineV3", "MoeDistributeDispatchV3"),
    *("GroupedDynamicBlockQuant", "GroupedDynamicMxQuant"),
    *("AddRmsNormDynamicMxQuant", "RmsNormDynamicMxQuant", "SwigluMxQuant"),
    # Whether a profiler shows INT4 or eight of them as INT32, and which of two kernels makes bits
    # of a mask, is not known: a device that is right would fail. So is the name of random numbers,
    # and the shape that the memory of a view is shown in.
    *("QuantBatchMatmulV4", "DSAGenBitMask", "DSAStatelessGenBitMask", "RandomUniform", "ViewCopy"),
}


def test_every_operator_has_a_self_test_row_or_one_of_its_twins():
    rows = {record.kernel_type for record in packaged_rows("operators")}
    lacking = {op.kernel for op in all_ops() if not rows & op.family}
    assert lacking == NO_ROW, "each has a plain row in collector/data/selftest/operators.csv"
    assert "GroupedMatmulSwigluQuant" in {r.kernel_type for r in packaged_rows("layouts")}


def test_no_operator_row_is_one_that_a_kernel_shows_with_other_cells():
    shown = {record.case.describe() for record in packaged_rows("operators")}
    for kernel, numbers_of_rows in DIFFERENT.items():
        path = FIXTURES / f"{kernel}.csv"
        records = tuple(read_table(path.read_bytes(), path=path.name))
        otherwise = {records[number].case.describe() for number in numbers_of_rows}
        assert not otherwise & shown, "a right device would fail the self-test"


@pytest.mark.parametrize("name", ["operators", "layouts"])
def test_rows_of_the_self_test_can_be_replayed_on_an_npu(name):
    assert [
        r for r in packaged_rows(name) if refusal(r.case, find_operator, "npu") is not None
    ] == []


def test_operator_rows_have_plain_layouts_and_layout_rows_npu_layouts():
    def layouts(record):
        reported = {
            s.format for s in record.case.inputs if s.shape and not is_plain_format(s.format)
        }
        return (
            reported - find_operator(record.kernel_type).layouts
        )  # which the runtime makes of plain tensors

    assert not any(layouts(record) for record in packaged_rows("operators"))
    for record in packaged_rows("layouts"):
        packed = "64" in record.cells["Input Data Types"]
        assert layouts(record) or packed, record.case.describe()


@pytest.mark.parametrize("keys_a_request", [128, 1024, 8192])
def test_decode_steps_of_different_lengths_have_equal_shapes(keys_a_request):
    record = decode_attention(keys_a_request)
    assert refusal(record.case, find_operator, "npu") is None
    assert record.cells == decode_attention(1).cells
    lengths = find_operator(record.kernel_type).runtime(record.case)[
        "Runtime actual_seq_lengths_kv_values"
    ]
    assert lengths == ",".join([str(keys_a_request)] * 4)


def test_trouble_operators_precede_declared_ones():
    assert find_trouble("OpmeterKilled").kernel == "OpmeterKilled"
    assert find_trouble("Mul") is not find_operator("Mul")
    assert find_trouble("Add") is find_operator("Add")
    assert find_trouble("NoSuchKernel") is None


def test_proof_is_stored_once_and_only_those_of_real_devices_are_listed():
    store = MemoryStore()
    proved = Verified(STACK, ("Add", "Mul"), "2026-11-23T12:00:00+00:00")
    fake = Stack(STACK.device, "2.9.0", details=runtime_details(Runtime.FAKE))
    key = keep(store, proved)
    assert keep(store, proved) == key
    keep(store, Verified(fake, ("Add",), "2026-11-23T12:00:00+00:00"))
    store.put("verified/notes.txt", b"somebody's")
    assert list(read_kept(store)) == [proved]
    assert keys.is_ours(key)


def test_damaged_proof_is_refused_by_name():
    store = MemoryStore()
    key = keys.verified("0" * 64)
    store.put(key, b'{"stack": 1}')
    with pytest.raises(BadInput, match=key):
        list(read_kept(store))


def test_proof_is_read_as_written():
    proved = Verified(STACK, ("Add",), "2026-11-23T12:00:00+00:00")
    assert verified_from_json(verified_to_json(proved)) == proved


def test_report_adds_the_proved_operators_to_the_list_of_the_package():
    assert verified_on("Add") == ()  # no report has been received yet
    text = with_proved("ATLAS", ["Mul", "Add"])
    assert yaml.safe_load(text) == {"ATLAS": ["Add", "Mul"]}
    assert text.startswith("# ")


def test_missing_call_of_vllm_ascend_fails_nothing():
    calls = (
        ResolvedCall("Add", "torch.add", "torch", ""),
        ResolvedCall("SparseFlashAttention", "torch.ops._C_ascend.sfa", "vllm-ascend", "no such"),
    )
    check = verdict_on_libraries(ResolvedCalls(calls, ()), "torch_npu-2.13.0")
    assert check.ok and numbers(check.found) == ["1"] and check.found.endswith("torch")


def test_missing_call_of_torch_npu_and_a_function_of_two_libraries_are_named():
    calls = (ResolvedCall("RmsNorm", "torch_npu.npu_rms_norm", "torch_npu", "no such"),)
    check = verdict_on_libraries(ResolvedCalls(calls, ()), "torch_npu-2.13.0")
    assert not check.ok and missing(check.found, ["RmsNorm", "torch_npu.npu_rms_norm"]) == []
    foreign = verdict_on_libraries(ResolvedCalls((), ()), "", ["SparseFlashAttention"])
    assert foreign.ok and "SparseFlashAttention" in foreign.found
    both = verdict_on_libraries(ResolvedCalls((), ("aclnnMoeGatingTopK",)), "")
    assert "aclnnMoeGatingTopK" in both.found


def test_call_that_the_release_is_known_to_lack_is_not_a_failure():
    call = ResolvedCall("SparseFlashAttention", "torch_npu.npu_sparse", "torch_npu", "no such")
    old = verdict_on_libraries(ResolvedCalls((call,), ()), "torch_npu-2.8.0")
    assert old.ok and missing(old.found, ["1", "torch_npu-2.8.0"]) == []
    assert not verdict_on_libraries(ResolvedCalls((call,), ()), "torch_npu-2.13.0").ok


def test_functions_in_two_libraries_are_found_by_their_names(tmp_path):
    custom, home = tmp_path / "vendor", tmp_path / "cann"
    (custom / "op_api/lib").mkdir(parents=True)
    (home / "lib64").mkdir(parents=True)
    names = b"\x00aclnnMoeGatingTopKGetWorkspaceSize\x00aclnnOursGetWorkspaceSize\x00"
    (custom / "op_api/lib/libcust_opapi.so").write_bytes(b"ELF" + names)
    (home / "lib64/libopapi.so").write_bytes(b"ELF\x00aclnnMoeGatingTopKGetWorkspaceSize\x00x")
    env = {"ASCEND_CUSTOM_OPP_PATH": f"{custom}:", "ASCEND_HOME_PATH": str(home)}
    assert functions_in_both(env) == ["aclnnMoeGatingTopK"]
    assert functions_in_both({"ASCEND_HOME_PATH": str(home)}) == []


def test_several_checks_are_combined_into_one_that_names_the_failed_ones():
    good, bad = Check("disk", True, "40 GiB"), Check("npu", False, "no device", "mount it")
    assert gathered([good]).ok
    assert gathered([good, bad]) == Check("environment", False, "npu: no device", "mount it")


def test_alternating_sizes_are_compared_within_and_between_themselves():
    fine = [2.0, 5.0, 30.0] * 4
    assert _mixed(fine, 0.25) == ""
    moved = [*fine[:3], 5.0, *fine[4:]]  # the small one took the time of the next size
    assert numbers(_mixed(moved, 0.25)) == ["64", "5.000", "2.000"]  # rows, and times in us
    assert {"30.000", "2.000"} < set(numbers(_mixed([30.0, 5.0, 2.0] * 4, 0.25)))


def test_unknown_check_is_refused_with_the_existing_ones():
    with raises_naming(BadInput, "--only", "'physic'", "environment, libraries"):
        run_checks(None, only=("physic",))


def test_reference_row_of_the_self_test_is_a_plain_case():
    record = reference_record("Add", "8,64;8,64", "8,64", "FLOAT")
    assert refusal(record.case, find_operator, "cpu") is None
