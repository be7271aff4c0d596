"""The function that launches a kernel that CANN and vLLM-Ascend both have."""

import sys
import types
from dataclasses import replace

import pytest

from collector.codec.errors import CaseRejected
from collector.engine.calls import parse_call
from collector.engine.environments import STACKS
from collector.host.custom_operators import without_custom_opp
from collector.measuring.batches import Batches
from collector.model.measurement import Library
from collector.model.plan import ShardCase
from collector.model.vocabulary import LIBRARY
from collector.ops.registry import all_ops, find_operator
from collector.ops.spec import NpuCall, library_of
from collector.replay.calls import selected_function
from collector.replay.custom_opp import read_functions
from tests.fixtures.op_rows import rows_alone, rows_of
from tests.npu.stock_stacks import otherwise_path, served_path
from tests.unit.collector.measuring.pretending import size
from tests.unit.collector.naming import names, naming
from tools.operators.releases.wheels import FOLDER, c_functions_of

SPARSE = find_operator("SparseFlashAttention")
ROW = rows_of("SparseFlashAttention")[0]
OWN = "torch.ops._C_ascend.npu_sparse_flash_attention"
# As the wheel of vllm_ascend 0.18.0 declares it, in the project's words.
HEADER = """
aclnnStatus aclnnSparseFlashAttentionGetWorkspaceSize(
    const aclTensor *query, const aclTensor *key, const aclTensor *value,
    const aclTensor *sparse, const aclTensor *table, const aclTensor *queries,
    const aclTensor *keys, const aclTensor *queryRope, const aclTensor *keyRope,
    double scale, int64_t blockSize, char *layoutQuery, char *layoutKeys, int64_t mode,
    const aclTensor *out, uint64_t *workspaceSize, aclOpExecutor **executor);
"""


def asking(library):
    """Return the row with a requested library."""
    return replace(ROW, extra={**ROW.extra, LIBRARY: library})


@pytest.fixture
def custom_opp(tmp_path):
    """The environment of a custom OPP that has SparseFlashAttention."""
    folder = tmp_path / "vendors" / "vllm-ascend"
    (folder / "op_api" / "include").mkdir(parents=True)
    (folder / "op_api" / "include" / "aclnn_made_up.h").write_text(HEADER)
    api = folder / "op_api" / "lib"
    return {"ASCEND_CUSTOM_OPP_PATH": str(folder), "LD_LIBRARY_PATH": f"/usr/lib:{api}/:/lib"}


@pytest.mark.fast
def test_cann_is_used_if_no_custom_opp_has_the_kernel(custom_opp):
    found = selected_function(SPARSE, ROW.case, {})
    assert (found.call, found.library, found.refused) == (SPARSE.call, Library.CANN, "")
    add = find_operator("Add")
    assert selected_function(add, rows_of("Add")[0].case, custom_opp).library is Library.CANN


@pytest.mark.fast
def test_function_of_the_serving_stack_is_called_if_the_custom_opp_has_the_kernel(custom_opp):
    found = selected_function(SPARSE, ROW.case, custom_opp)
    assert (found.call, found.library, found.refused) == (OWN, Library.VLLM_ASCEND, "")


@pytest.mark.fast
def test_library_without_headers_is_searched_for_function_names(tmp_path):
    library = tmp_path / "op_api" / "lib" / "libcust_opapi.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\x7fELF\x00aclnnMoeGatingTopKGetWorkspaceSize\x00")
    environment = {"ASCEND_CUSTOM_OPP_PATH": str(tmp_path)}
    gating = find_operator("MoeGatingTopK")
    found = selected_function(gating, rows_of("MoeGatingTopK")[0].case, environment)
    assert found.call == gating.npu.served and found.library is Library.VLLM_ASCEND


@pytest.mark.fast
def test_other_signature_without_a_serving_function_is_refused(custom_opp):
    unserved = replace(SPARSE, npu=NpuCall(run=SPARSE.npu.run))
    found = selected_function(unserved, ROW.case, custom_opp)
    assert found.library is Library.VLLM_ASCEND and names(
        found.refused, "aclnnSparseFlashAttention"
    )


@pytest.mark.fast
def test_case_gets_the_requested_library_or_is_refused(custom_opp):
    assert selected_function(SPARSE, asking("cann").case, {}).refused == ""
    assert selected_function(SPARSE, asking("vllm-ascend").case, custom_opp).refused == ""
    refused = selected_function(SPARSE, asking("vllm-ascend").case, {}).refused
    assert names(refused, "SparseFlashAttention", "vllm-ascend")
    refused = selected_function(SPARSE, asking("cann").case, custom_opp).refused
    assert names(refused, "SparseFlashAttention", "cann") and "vllm-ascend" not in refused


@pytest.mark.fast
def test_session_for_cann_has_no_custom_opp(custom_opp):
    bare = without_custom_opp({**custom_opp, "HOME": "/root"})
    assert bare == {"LD_LIBRARY_PATH": "/usr/lib:/lib", "HOME": "/root"}
    assert without_custom_opp({"HOME": "/root"}) == {"HOME": "/root"}


@pytest.mark.fast
def test_session_measures_for_one_library():
    plain, served, cann = (
        ShardCase(one, 1.0) for one in (ROW, asking("vllm-ascend"), asking("cann"))
    )
    batches = Batches(size(60.0))
    assert batches.next([plain, cann, served]) == [plain, served]
    assert batches.next([cann]) == [cann]
    killed = [[case.record.case_id for case in (cann, plain, cann, plain)]]
    assert Batches(size(60.0), killed).next([cann, plain, served]) == [cann]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("row", "library", "backend", "named"),
    [
        (ROW, "cann", "npu", ()),
        (ROW, "vllm-ascend", "npu", ()),
        (ROW, "atb", "npu", ("cann", "vllm-ascend", "atb")),
        (ROW, "cann", "cpu", ("cann", "cpu")),
        (rows_of("Add")[0], "vllm-ascend", "npu", ("cann",)),
        (rows_alone("AddRmsNormBias")[0], "cann", "npu", ("vllm-ascend",)),
    ],
)
def test_library_can_be_requested_only_for_its_kernels(row, library, backend, named):
    case = replace(row, extra={**row.extra, LIBRARY: library}).case
    op = find_operator(case.kernel_type)
    if named:
        with pytest.raises(CaseRejected, match=naming(*named)):
            op.check(case, backend)
    else:
        op.check(case, backend)


@pytest.mark.torch
def test_serving_function_gets_the_arguments_of_its_release(custom_opp, monkeypatch):
    import torch

    from collector.replay.calls import NpuCalls
    from collector.replay.tensors import CaseTensors

    schemas = (FOLDER / "vllm_ascend-0.18.0.txt").read_text().splitlines()
    schema = next(line for line in schemas if line.startswith("npu_sparse_flash_attention("))
    given = {}

    def attend(query, *args, **named):
        given.update(named, query=query)
        return torch.empty_like(query)

    def enable():
        library.define(schema)
        library.impl("npu_sparse_flash_attention", attend, "CPU")

    library = torch.library.Library("_C_ascend", "FRAGMENT")
    package = types.ModuleType("vllm_ascend.utils")
    package.enable_custom_op = enable
    monkeypatch.setitem(sys.modules, "vllm_ascend", types.ModuleType("vllm_ascend"))
    monkeypatch.setitem(sys.modules, "vllm_ascend.utils", package)
    launcher = NpuCalls(types.SimpleNamespace(), custom_opp).of(SPARSE, ROW.case)
    call = launcher.build(ROW.case, CaseTensors("cpu", 7, frozenset()))
    output = launcher.run(*call.args, **call.kwargs)
    assert launcher.library is Library.VLLM_ASCEND
    assert output.shape == given["query"].shape == ROW.case.outputs[0].shape
    assert given["layout_kv"] == "PA_BSND" and "attention_mode" not in given


@pytest.mark.fast
def test_every_serving_function_is_that_of_vllm_ascend():
    served = [op for op in all_ops() if op.npu.served]
    assert {library_of(op.npu.served) for op in served} == {"vllm-ascend"}
    assert {op.kernel for op in served} == {
        *("DequantSwigluQuant", "GemmaRmsNorm", "GroupedMatmulSwigluQuant", "LightningIndexer"),
        *("GroupedMatmulSwigluQuantV2", "KvQuantSparseFlashAttention", "MoeGatingTopK"),
        *("RecurrentGatedDeltaRule", "SparseFlashAttention"),
    }
    assert all(op.library == "torch_npu" for op in served)


@pytest.mark.fast
@pytest.mark.parametrize("release", STACKS)
def test_stock_extension_calls_the_functions_that_its_custom_opp_declares(release):
    """Recorded from the release's own wheels: if its custom OPP has the function, its own extension
    called it, with the arguments of the header; otherwise CANN is used."""
    declared = c_functions_of(f"vllm_ascend-{release}")
    called = {"aclnnGroupedMatmulSwigluQuantV2"} & declared.keys()  # no extension calls it
    for block in served_path(release).read_text().split("\n\n"):
        _, *calls, library = block.strip().splitlines()
        if library.startswith("  error: "):
            continue
        (call,) = (parse_call(text.strip()) for text in calls)
        assert library == f"  of {'vllm-ascend' if call.name in declared else 'cann'}"
        if call.name in declared:
            assert len(call.arguments) == len(declared[call.name].arguments)
            called.add(call.name)
    assert called == set(declared)


# Refusals of a stack that differ from torch_npu 2.13.0, with the reason why they are expected.
_KNOWN = (
    "has no such function",  # recorded of its wheels, collector/data/releases.csv
    "accepts other arguments",
    "aten::",  # checked on the function itself
    "No module named 'vllm'",  # the package of the Triton kernels
    "the process ended, status -11",  # launched without aclnn, which the recording runtime lacks
    "10 FLOAT",  # torch_npu 2.9.0 returns no sums
    "does not start on Ascend950",  # torch_npu 2.9.0
)


@pytest.mark.fast
@pytest.mark.parametrize("release", STACKS)
def test_stacks_refuse_only_the_known_calls(release):
    text = otherwise_path(release).read_text()
    refused = [line.strip() for line in text.splitlines() if "error:" in line]
    assert refused and all(any(known in line for known in _KNOWN) for line in refused)
    ended = {b.split(":")[0].strip() for b in text.split("\n\n") if "the process ended" in b}
    assert ended == {"batch_matmul_transpose_0", "mla_preprocess_0_mix_aic"}


@pytest.mark.fast
def test_header_of_these_tests_is_that_of_the_wheel():
    (own,) = read_functions(HEADER)
    assert own == c_functions_of("vllm_ascend-0.18.0")["aclnnSparseFlashAttention"]
