"""References against torch_npu's own meta kernels: two independent sources of an operator's output
shapes and dtypes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from collector.ops.registry import all_ops
from tests.fixtures.row_checks import failing
from tests.npu.fakecann.build import FakeCann, environment
from tests.npu.replayed import kernels_with_rows

pytestmark = [pytest.mark.npu, pytest.mark.torch]

ROOT = Path(__file__).parents[2]
OF_NPU = {op.kernel for op in all_ops() if op.library == "torch_npu"}
KERNELS = [kernel for kernel in kernels_with_rows() if kernel in OF_NPU]

NO_META = {
    *("PagedCacheLoadNdKernel", "RINGMLAPrefillBF16Kernel", "ReshapeAndCacheNdKernel"),
    *("GatherPaKvCache", "Slice"),
}
# Rows by kernel and number, with the reason why they cannot be compared.
INCOMPARABLE = {
    ("ApplyTopKTopPWithSorted", 2): "the meta kernel requires k, which the schema leaves out",
    ("GroupedMatmul", 5): "the meta kernel knows fewer output dtypes than the C++",
    ("GroupedMatmul", 11): "the meta kernel knows fewer output dtypes than the C++",
    ("QuantBatchMatmulV3", 5): "the scale is packed by npu_trans_quant_param, on the NPU",
    ("QuantBatchMatmulV3", 6): "the scale is packed by npu_trans_quant_param, on the NPU",
    ("QuantBatchMatmulV3", 10): "the scale is packed by npu_trans_quant_param, on the NPU",
    ("QuantBatchMatmulV3", 11): "the scale is packed by npu_trans_quant_param, on the NPU",
}
DIFFERENT = {
    ("MlaPrologV3", 3): "the meta kernel returns no rotated keys, the reference an empty tensor",
    ("GroupedMatmulSwigluQuantV2", 2): "the meta kernel gives no outputs for scales of groups",
    ("GroupedMatmulSwigluQuantV2", 5): "the meta kernel has a byte for each FLOAT4, not for two",
    ("RotaryPositionEmbeddingGrad", 1): "the meta kernel leaves the gradients of cos and sin out",
}


@pytest.fixture(scope="module")
def answers(fake: FakeCann, tmp_path_factory) -> dict[str, list[dict]]:
    out = tmp_path_factory.mktemp("meta") / "answers.json"
    subprocess.run(
        [sys.executable, "-m", "tests.npu.meta_rows", str(out)],
        cwd=ROOT,
        env=environment(fake),
        capture_output=True,
        timeout=300,
        check=True,
    )
    return json.loads(out.read_text())


def test_meta_kernels_and_references_have_the_same_outputs(answers):
    def check(row):
        kernel, number = row
        answer = answers[kernel][number]
        if kernel in NO_META:
            assert "no fake impl or Meta kernel" in answer["error"]
            return
        assert bool(answer["error"]) == (row in INCOMPARABLE), answer["error"]
        if not answer["error"]:
            is_equal = answer["meta"] == answer["reference"]
            assert is_equal != (row in DIFFERENT), answer

    assert set(KERNELS) <= set(answers)
    rows = [(kernel, number) for kernel in KERNELS for number in range(len(answers[kernel]))]
    assert failing(rows, check, "{0[0]} {0[1]}".format) == []


def test_most_kernels_have_a_meta_kernel(answers):
    requested = {
        kernel for kernel, rows in answers.items() if any(not row["error"] for row in rows)
    }
    assert len(requested) >= 40
