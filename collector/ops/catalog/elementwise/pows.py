"""Power of a tensor and a number of the host: the square of a gradient's norm.

aclnnPowTensorScalar launches it on Atlas A2 and A3 for the exponents 2, 3, 0.5, -0.5, -1 and -2 of
floating-point tensors; other powers are a Pow. A profile does not tell the exponent: 2 here.
"""

from collector.case import Case
from collector.ops.catalog.elementwise._elementwise import binary, positive
from collector.ops.dtypes import inputs_are
from collector.ops.slots import input_shape
from collector.ops.spec import Call, Constraint, TensorMaker

_EXPONENT = 2.0


def _build(case: Case, make: TensorMaker) -> Call:
    return Call((positive((case.inputs or ())[0], make), _EXPONENT))


OP = binary(
    "Pows",
    "torch.pow",
    lambda torch, x, exponent: torch.pow(x, exponent),
    build=_build,
    constraints=(
        inputs_are(("FLOAT", "FLOAT16", "DT_BF16"), (0, 1)),
        Constraint("the exponent wants to be a scalar", lambda case: input_shape(case, 1) == ()),
    ),
)
