"""Capture launches of a serving step on the device `npu`, with the lengths of its requests, in
several steps."""

import sys
from pathlib import Path

import torch

from collector.capture import capture


def step(heads: int, lengths: list[int]) -> None:
    """Launch a decoding step of this many requests: attention over pages, a routing, a norm."""
    import torch_npu

    def made(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device="npu")

    requests = len(lengths)
    table = made(requests, 4, dtype=torch.int32)
    torch_npu.npu_fused_infer_attention_score(
        made(requests, heads, 128),
        made(64, 128, heads * 128),
        made(64, 128, heads * 128),
        actual_seq_lengths=list(range(1, requests + 1)),
        actual_seq_lengths_kv=lengths,
        block_table=table,
        num_heads=heads,
        num_key_value_heads=heads,
        input_layout="TND",
        block_size=128,
    )
    torch_npu.npu_moe_gating_top_k_softmax(made(requests, 64, dtype=torch.float32), k=8)
    query = made(requests, heads, 64)
    torch_npu.npu_fusion_attention(query, query, query, heads, "BSH")


if __name__ == "__main__":
    import torch_npu  # noqa: F401 - adds torch.npu

    with capture(Path(sys.argv[1]), steps=3) as session:
        for number in range(4):
            step(4, [200 + number, 300 + number])
            torch.npu.synchronize()
            session.step()
