"""The forward passes of bundled models, in their real sizes, through the stock torch_npu."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collector.database.commits import find_head
from collector.database.query import case_results
from collector.database.snapshot import load_state
from collector.model.measurement import Outcome
from collector.ops.registry import find_operator
from collector.ranks.distribution import DISTRIBUTE_KERNELS
from collector.store import open_store
from jobs.campaign.campaign_file import load_campaign
from jobs.planning.sources import load_sources
from tests.npu.fakecann.build import npu_host

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

_ROOT = Path(__file__).parents[2]
_CAMPAIGN = """\
campaign: models
sources:
- model: qwen3-32b
  layout: {tp: 16, nz: 2}
  serving: {concurrency: [16], input: 512, output: 64, max_batched_tokens: 1024}
- model: llama-3-70b
  layout: {tp: 8}
  serving: {concurrency: [4], input: 512, output: 64}
- model: deepseek-v3
  layout: {tp: 8, dp: 2, ep: 16, sequence_split: true, quantisation: w8a8}
  serving: {concurrency: [5], input: 512, output: 64}
- model: deepseek-v3
  layout: {tp: 8, dp: 2, ep: 16, sequence_split: true, quantisation: w8a8, experts: apart}
  serving: {concurrency: [8], input: 128, output: 3}
- model: deepseek-v3
  layout: {tp: 8, dp: 2, ep: 16, sequence_split: true, quantisation: w8a8, experts: apart}
  serving: {concurrency: [1], input: 4900, output: 1}
- model: qwen3-235b-a22b
  layout: {tp: 8, dp: 2, ep: 16, sequence_split: true, experts: apart}
  serving: {concurrency: [8], input: 128, output: 3}
target: here
backend: npu
measure: {repeats: 3}
quality: {repeat_share: 0}
"""


@pytest.fixture(scope="module")
def outcomes(fake, tmp_path_factory):
    """kernel type -> the outcomes of its cases."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "campaign.yaml").write_text(_CAMPAIGN)
    env = npu_host(fake, folder) | {
        "TMPDIR": str(folder),
    }
    env["PYTHONPATH"] = os.pathsep.join((str(_ROOT), env["PYTHONPATH"]))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jobs.cli", "run", "campaign.yaml", "--root", "data"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    print(done.stdout, done.stderr)
    store = open_store(str(folder / "data"))
    state = load_state(store, find_head(store))
    (version,) = state.versions
    found, seen = case_results(state, version), {}
    for source in load_sources(load_campaign(folder / "campaign.yaml"), store):
        for record in source.records:
            seen.setdefault(record.kernel_type, []).append(found[record.case_id].outcome)
    return seen


def test_every_kernel_of_a_pass_is_launched_by_its_call(outcomes):
    """Return them without those that need vLLM-Ascend, and experts without their ranks. A fake
    without physics may report that a large product takes less time than possible."""
    alone = {
        kernel
        for kernel in outcomes
        if (op := find_operator(kernel))
        and op.library != "vllm-ascend"
        and kernel not in DISTRIBUTE_KERNELS
    }
    wrong = {
        (kernel, outcome)
        for kernel in alone
        for outcome in outcomes[kernel]
        if outcome not in (Outcome.OK, Outcome.IMPLAUSIBLE)
    }
    assert wrong == set()
    assert {"BroadcastTo", "Transpose", "Slice"} <= alone  # copies of views
    assert {"MatMulV2", "QuantBatchMatmulV3", "FusedInferAttentionScore"} <= alone
    assert {"GroupedMatmul", "GroupedMatmulSwigluQuant", "MoeTokenPermute"} <= alone


def test_sample_of_the_cases_of_models_is_launched_by_its_calls(fake):
    """Twenty-five cases of each kernel type, in real sizes, of a quarter of the cases of models."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.npu.model_sample", "--rows", "25", "--one-in", "4"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    *kernels, _ = done.stdout.splitlines()
    assert len(kernels) > 80
    assert any(line.startswith("SparseFlashAttention: ") for line in kernels)


def test_kernels_that_are_not_launched_here_are_unsupported(outcomes):
    elsewhere = {kernel for kernel in outcomes if set(outcomes[kernel]) == {Outcome.UNSUPPORTED}}
    assert elsewhere == {
        *("AddRmsNormBias", "DispatchFFNCombine", "_triton_rope"),
        "muls_add_kernel",
        *("MoeDistributeDispatchV2", "MoeDistributeCombineV2"),
        "split_qkv_rmsnorm_rope_kernel",
    }
