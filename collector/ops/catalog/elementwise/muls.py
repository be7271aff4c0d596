"""Product of a 16-bit tensor and a number of the host, which a profile does not tell: 0.5.

aclnnMuls launches it for DT_BF16 and a floating-point number (Ascend 950: for FLOAT16 as well), so
that the number is not rounded first; whatever else it is given becomes a Mul with a scalar.
"""

from collector.case import Case
from collector.ops.catalog.elementwise._elementwise import unary
from collector.ops.dtypes import inputs_are
from collector.ops.spec import Call, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    (slot,) = case.inputs or ()
    return Call((make.normal(slot.shape or (), slot.dtype), 0.5))


OP = unary(
    "Muls",
    "torch.mul",
    lambda torch, x, factor: torch.mul(x, factor),
    build=_build,
    constraints=(inputs_are(("DT_BF16", "FLOAT16"), (0,)),),
)
