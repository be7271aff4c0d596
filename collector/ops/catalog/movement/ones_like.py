"""Ones in the shape of a tensor. `torch.ones_like` itself launches a Fill since torch_npu fills
with a number there; ones written into memory that exists are an OnesLike."""

from collector.case import Case
from collector.ops.catalog.movement._fill import fill
from collector.ops.parts.moving import place
from collector.ops.spec import Call, NpuCall, TensorMaker


def _npu_build(case: Case, make: TensorMaker) -> Call:
    (like,) = case.inputs or ()
    return Call((like.shape or (),), {"out": place(like, make)})


OP = fill("OnesLike", "torch.ones", lambda torch, x: x.fill_(1), NpuCall(build=_npu_build))
