"""The position of the cases of a model among those with the same weights."""

from dataclasses import replace

import pytest

from collector.shapes.kernel_set import find_kernel_set
from collector.shapes.layout import layout_of
from collector.shapes.models import find_decoder
from collector.shapes.serving import Batch, Phase
from collector.shapes.step import derive_step
from jobs.planning.coverage import curve_position

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("tokens", [64, 3])
def test_pool_size_of_sparse_attention_does_not_distinguish_launches(tokens):
    """Nor does the width of a table, wherever kernels have one; more tokens are another place."""
    places = []
    for keys, count in ((4000, 512), (4000, 700), (4000, 512)):
        batch = Batch(Phase.DECODE, tokens + (len(places) == 2), 1, keys)
        step = derive_step(
            find_decoder("glm-5.1"),
            layout_of("tp=8,ep=8,quantisation=w8a8"),
            batch,
            find_kernel_set("vllm-ascend-0.18"),
        )
        pages = str(max(16, batch.requests * 32))
        found = {}
        for one in step.kernels:
            cells = {
                name: text.replace(f"{pages},128", f"{count},128").replace(
                    f'"{int(pages) * 128},128', f'"{count * 128},128'
                )
                for name, text in one.record.cells.items()
            }
            case = replace(one.record, cells=cells).case
            found.setdefault(case.kernel_type, []).append(curve_position(case).exact)
        places.append(found)
    one, larger_pool, more_tokens = places
    kernels = ("SparseFlashAttention", "LightningIndexer", "ScatterNdUpdate")
    for kernel in (*kernels, "mla_preprocess_0_mix_aic"):
        assert one[kernel] == larger_pool[kernel] != more_tokens[kernel], kernel
