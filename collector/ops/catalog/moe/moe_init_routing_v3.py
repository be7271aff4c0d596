"""Tokens in the order of their experts: CANN's own kernel."""

from collector.ops.catalog.moe._init_routing import init_routing

OP = init_routing("MoeInitRoutingV3", "torch_npu.npu_moe_init_routing_v2")
