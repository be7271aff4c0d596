"""The packaged deployments, as a campaign plans them."""

from collections import defaultdict

import pytest

from collector.ops.refusals import refusal
from collector.ops.registry import find_operator
from collector.workloads.deployments import deployed_step, find_deployment
from collector.workloads.layout import layout_of
from collector.workloads.serving import Batch, Phase
from jobs.planning.sources import completed_records
from tools.recordings.recipes import RECIPES

pytestmark = pytest.mark.fast

BATCHES = {
    "prefill": Batch(Phase.PREFILL, 1, 4096, 4096),
    "decode": Batch(Phase.DECODE, 16, 1, 4096),
    "chunk": Batch(Phase.PREFILL, 1, 4096, 12288),
    "mixed": Batch(Phase.PREFILL, 1, 1000, 1000, mixed_decodes=5, followed_keys=200),
}
# Kernels that no operator measures, and in which deployments: see docs/evaluation.
NEXT, LINEAR = "qwen3-next-80b-a3b", "qwen3.5-397b-a17b"
OF_18, OF_23 = "vllm-ascend-0.18", "vllm-ascend-0.23"
BOTH_OF_23 = {(NEXT, OF_23), (LINEAR, OF_23)}
FLASH = {("deepseek-v4-flash", OF_23)}
NOT_MEASURED = {
    "BroadcastTo": {(NEXT, OF_18), (LINEAR, OF_18), *BOTH_OF_23},  # a state to its own shape
    "LightningIndexer": {("deepseek-v3.2", OF_23)},  # tokens that pad to the ranks
    "NonZero": {(NEXT, OF_18), (LINEAR, OF_18), (NEXT, OF_23)},  # of a mask with false elements
    "SparseAttnSharedkvMetadata": FLASH,
    "SparseFlashAttention": {("deepseek-v3.2", OF_23)},
    "VllmQuantLightningIndexerMetadata": FLASH,
    "_compute_slot_mapping_kernel": FLASH,  # of fewer blocks than tokens
}


def test_packaged_kernels_are_measured_but_for_the_listed_ones():
    found = defaultdict(set)
    for recipe in RECIPES:
        layout = layout_of(recipe.recorded[-1])
        deployment = find_deployment(recipe.model, recipe.release, layout)
        assert deployment is not None, recipe.file_name
        for phase in {one.phase for one in deployment.ranges}:
            step = deployed_step(deployment, BATCHES[phase])
            for record in completed_records(one.record for one in step.kernels):
                if refusal(record.case, find_operator, "npu") is not None:
                    found[record.kernel_type].add((recipe.model, recipe.release))
    assert found == NOT_MEASURED
