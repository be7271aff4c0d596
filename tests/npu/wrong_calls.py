"""Make wrong calls on `meta` or the fake `npu:0`, and write whether and how each was refused:
`python -m tests.npu.wrong_calls DEVICE OUT`. Runs in a separate process."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collector.host import imports

Empty = Callable[..., Any]


def calls_to_refuse(torch: Any, npu: Any) -> dict[str, Callable[[Empty], Any]]:
    """Return name -> the function that makes the call, from one that makes empty tensors (bfloat16
    by default)."""
    f32, i8, i32, i64 = torch.float32, torch.int8, torch.int32, torch.int64

    def attention(E: Empty, layout: str) -> Any:
        return npu.npu_fused_infer_attention_score(
            E(2, 1, 64), E(2, 4, 64), E(2, 4, 64), num_heads=2, input_layout=layout
        )

    def routing(E: Empty) -> Any:
        return npu.npu_moe_init_routing_v2(
            E(4, 8),
            E(4, 2, d=i32),
            active_num=8,
            expert_num=4,
            expert_tokens_num_type=9,
            expert_tokens_num_flag=True,
            active_expert_range=[0, 4],
        )

    def quant(E: Empty, x1: Any, x2: Any, scale: int, **more: Any) -> Any:
        return npu.npu_quant_matmul(x1, x2, E(scale, d=f32), output_dtype=torch.bfloat16, **more)

    def grouped(E: Empty, x: Any, weight: Any, groups: Any, **more: Any) -> Any:
        return npu.npu_grouped_matmul(x, weight, group_list=groups, **more)

    return {
        "unknown keyword": lambda E: npu.npu_rms_norm(E(4, 8), E(8), eps=1e-6),
        "missing argument": lambda E: npu.npu_quant_matmul(E(4, 8, d=i8), E(8, 4, d=i8)),
        "text for a number": lambda E: npu.npu_swiglu(E(4, 8), dim="x"),
        "keyword by position": lambda E: npu.npu_dynamic_quant(E(4, 8), E(8)),
        "tensor for a list": lambda E: grouped(E, E(4, 8), E(2, 8, 4), E(2, d=i64)),
        "matmul of other K": lambda E: torch.mm(E(4, 8), E(16, 4)),
        "unknown layout": lambda E: attention(E, "XYZ"),
        "layout of other rank": lambda E: attention(E, "BNSD"),
        "quantised matmul of other K": lambda E: quant(E, E(4, 8, d=i8), E(16, 4, d=i8), 4),
        "unknown way to count tokens": routing,
        "impossible order of dimensions": lambda E: npu.npu_transpose_batchmatmul(
            E(4, 2, 8), E(2, 8, 4), perm_x1=[2, 1, 0], perm_x2=[0, 1, 2], perm_y=[1, 0, 2]
        ),
        "tensor of another device": lambda E: npu.npu_rms_norm(
            E(4, 8), torch.ones(8, dtype=torch.bfloat16)
        ),
        "quantised matmul of floats": lambda E: quant(E, E(4, 8), E(8, 4), 4),
        "scales for other tokens": lambda E: quant(
            E, E(4, 8, d=i8), E(8, 4, d=i8), 4, pertoken_scale=E(7, d=f32)
        ),
        "gamma of another size": lambda E: npu.npu_rms_norm(E(4, 8), E(16)),
        "odd last dimension": lambda E: npu.npu_swiglu(E(4, 7)),
        "more experts than there are": lambda E: npu.npu_moe_gating_top_k(E(4, 8), 99),
        "rope of 32": lambda E: npu.npu_interleave_rope(
            E(4, 2, 1, 32), E(4, 1, 1, 32), E(4, 1, 1, 32)
        ),
        "groups as numbers": lambda E: grouped(
            E, [E(4, 8)], [E(2, 8, 4)], [2, 4], split_item=3, group_type=0
        ),
    }


def main(device: str, out: Path) -> None:
    with imports.permanent():
        import torch
        import torch_npu

    def empty(*shape: int, d: Any = torch.bfloat16) -> Any:
        return torch.empty(*shape, dtype=d, device=device)

    answers = {}
    for name, call in calls_to_refuse(torch, torch_npu).items():
        try:
            call(empty)
            answers[name] = ""
        except Exception as error:  # the type of the error differs by layer
            answers[name] = f"{type(error).__name__}: {error}".split("\n")[0]
    out.write_text(json.dumps(answers))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
