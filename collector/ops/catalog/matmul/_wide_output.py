"""Products of 16-bit matrices that are given back as FLOAT, and which releases launch them."""

from collector.case import Case
from collector.errors import CaseRejected
from collector.ops.dtypes import spelling
from collector.ops.slots import given, output_slot
from collector.ops.spec import Constraint, TensorMaker

_NARROW = ("DT_BF16", "FLOAT16")


def is_wide(case: Case) -> bool:
    """Whether the row gives FLOAT back of a product of 16 bits."""
    return spelling(output_slot(case)) == "FLOAT" and spelling(given(case, 0)) in _NARROW


def _fits(case: Case) -> bool:
    out = output_slot(case)
    return not spelling(out) or spelling(out) == spelling(given(case, 0)) or is_wide(case)


OUTPUT_FITS = Constraint(
    "an output of the inputs' dtype is wanted, or FLOAT of DT_BF16 and FLOAT16", _fits
)


def check_release(make: TensorMaker, schema: str) -> None:
    """Raises CaseRejected where this torch_npu has no such product. It would leave one to the
    host's processor without a word."""
    dispatch = make.torch._C
    try:
        is_there = dispatch._dispatch_has_kernel_for_dispatch_key(schema, "PrivateUse1")
    except RuntimeError:  # a torch that has not even the schema
        is_there = False
    if not is_there:
        raise CaseRejected(
            f"FLOAT of a product of 16 bits wants torch_npu with {schema}: 2.10.0.post4 has it, "
            "2.9.0 and 2.10.0 have not"
        )
