"""A tensor from one layout into another: what CANN puts before and behind kernels that want blocks.

Around a convolution NCHW becomes NC1HWC0 (images) and FRACTAL_Z (filters), around pooling
NC1HWC0:1, and a matrix FRACTAL_NZ by a cast; and each of them back.
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.vision._conversion import (
    FORMATS,
    Conversion,
    converted,
    read_conversion,
)
from collector.ops.catalog.vision._conversion_calls import build_launch, run_launch
from collector.ops.dtypes import one_dtype, spelling
from collector.ops.parts.moving import no_flops
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker
from collector.vocabulary import FRACTAL_NZ

_FLOATS, _NZ = ("FLOAT", "FLOAT16", "DT_BF16"), ("FLOAT16", "DT_BF16", "INT8")


def _build(case: Case, make: TensorMaker) -> Call:
    (x, *_) = case.inputs or ()
    return Call((make.normal(x.shape or (), x.dtype), read_conversion(case)))


def _reference(torch: Any, x: Any, way: Conversion) -> Any:
    return converted(torch, x, way)


def _is_made(case: Case) -> bool:
    """Convolution and pooling are of floating-point numbers. In how many columns FRACTAL_NZ has
    FLOAT differs: torch_npu gives 16, 32 bytes hold 8."""
    way, (x, *_) = read_conversion(case), case.inputs or ()
    return way is not None and spelling(x) in (_NZ if way.layout == FRACTAL_NZ else _FLOATS)


OP = OpSpec(
    kernel="TransData",
    call="torch.conv2d",
    slots=("src",),
    layouts=FORMATS,
    moves_data=True,
    reference=_reference,
    build=_build,
    flops=no_flops,
    constraints=(
        Constraint(
            "one tensor is wanted, plain and in NC1HWC0, FRACTAL_Z or FRACTAL_NZ of blocks as its "
            "dtype has them",
            lambda case: read_conversion(case) is not None,
        ),
        one_dtype((0,)),
        Constraint(
            f"{', '.join(_FLOATS)} are converted for images and filters, "
            f"{', '.join(_NZ)} for FRACTAL_NZ",
            _is_made,
        ),
    ),
    npu=NpuCall(run=run_launch, build=build_launch),
)
