"""Functions of a custom OPP with the name of one of CANN's and other arguments."""

from importlib.resources import files

import pytest

from collector.ops.registry import all_ops
from collector.ops.releases import CFunction, launched_by
from collector.replay.custom_opp import mismatched_function, read_functions
from tests.unit.collector.naming import names
from tools.operators.launched import launched_table
from tools.operators.releases.wheels import RELEASES, c_functions_of

# As the wheel of vllm_ascend 0.18.0 declares it, in the project's words.
HEADER = """
/* aclnnSparseFlashAttentionGetWorkspaceSize(double in, comments) ; */
aclnnStatus aclnnSparseFlashAttentionGetWorkspaceSize(
    const aclTensor *query, const aclTensor *key, const aclTensor *value,
    const aclTensor *sparse, const aclTensor *table, const aclTensor *queries, // lengths
    const aclTensor *keys, const aclTensor *queryRope, const aclTensor *keyRope,
    double scale, int64_t blockSize, char *layoutQuery, char *layoutKeys, int64_t mode,
    const aclTensor *out, uint64_t *workspaceSize, aclOpExecutor **executor);
aclnnStatus aclnnSparseFlashAttention(void *workspace, uint64_t size);
"""


@pytest.fixture
def custom_opp(tmp_path):
    """(header) -> the environment of a custom OPP with it."""

    def make(header):
        include = tmp_path / "vendors" / "vllm-ascend" / "op_api" / "include" / "aclnnop"
        include.mkdir(parents=True)
        (include / "aclnn_made_up.h").write_text(header)
        return {"ASCEND_CUSTOM_OPP_PATH": str(tmp_path / "vendors" / "vllm-ascend")}

    return make


@pytest.mark.fast
def test_a_header_is_read():
    assert list(read_functions(HEADER)) == [
        CFunction("aclnnSparseFlashAttention", "..........ss..", has_numbers=True)
    ]


@pytest.mark.fast
def test_function_table_equals_the_recorded_calls():
    held = (files("collector") / "data" / "launched.csv").read_bytes()
    assert held == launched_table(), "python -m tools launched writes it"
    assert launched_by("SparseFlashAttention") == (
        CFunction("aclnnSparseFlashAttention", "..........ss........", has_numbers=True),
    )


@pytest.mark.fast
def test_call_that_another_library_would_misread_is_refused(custom_opp):
    environment = custom_opp(HEADER)
    reason = mismatched_function("SparseFlashAttention", environment)
    assert names(reason, "aclnnSparseFlashAttention", "14 arguments", "20 arguments")
    assert reason.count("floating-point") == 2
    assert mismatched_function("MoeGatingTopK", environment) == ""
    assert mismatched_function("SparseFlashAttention", {}) == ""


@pytest.mark.fast
@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ("const aclTensor *x, const aclTensor *out", True),
        ("const aclTensor *x, double scale, const aclTensor *out", False),
        ("const aclTensor *x, int64_t k, const aclTensor *out", False),
    ],
)
def test_number_and_kind_of_arguments_must_match(custom_opp, arguments, fits):
    environment = custom_opp(
        f"aclnnStatus aclnnNegGetWorkspaceSize({arguments}, uint64_t *size, aclOpExecutor **e);"
    )
    assert (mismatched_function("Neg", environment) == "") is fits


@pytest.mark.fast
def test_functions_with_other_arguments_are_listed_per_release():
    passed = {one.name: one for op in all_ops() for one in launched_by(op.kernel)}
    releases = [name.replace("==", "-") for name in RELEASES if name.startswith("vllm")]
    other = {
        release: {
            name
            for name, taken in c_functions_of(release).items()
            if (len(taken.arguments), taken.has_numbers)
            != (len(passed[name].arguments), passed[name].has_numbers)
        }
        for release in releases
    }
    assert other == {
        "vllm_ascend-0.11.0": set(),
        "vllm_ascend-0.13.0": {"aclnnLightningIndexer", "aclnnSparseFlashAttention"},
        "vllm_ascend-0.18.0": {"aclnnSparseFlashAttention"},
        "vllm_ascend-0.23.0": {
            *("aclnnGroupedMatmulSwigluQuantV2", "aclnnGroupedMatmulSwigluQuantWeightNZ"),
            *("aclnnGroupedMatmulSwigluQuantWeightNzV2", "aclnnKvQuantSparseFlashAttention"),
        },
    }
    assert "aclnnMoeGatingTopK" in c_functions_of("vllm_ascend-0.18.0")
