"""Tokens in the order of their experts: vLLM-Ascend's own kernel, by which 0.18 and 0.23 serve on
A2 and A3 (`vllm_ascend/device/device_op.py`)."""

from collector.ops.catalog.moe._init_routing import init_routing
from collector.ops.spec import Need

OP = init_routing(
    "MoeInitRoutingCustom",
    "torch.ops._C_ascend.npu_moe_init_routing_custom",
    frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND}),
)
