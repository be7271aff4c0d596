"""What the recorded calls of images launch: the OP Type that msprof prints.

Both calls of pooling are `SEEN`, in a real profile; convolutions have the name of their kernel.
What they also convert is in `collector/recording/converted.py`. `Identity` between two formats is
what torch_npu asks for a cast: that CANN makes TransData of it is assumed.
"""

from collections.abc import Callable, Sequence
from typing import Any


def cast(tensors: Sequence[Any]) -> str:
    """Into another format, or a copy in the same one."""
    source, target = tensors
    return "Identity" if source.format == target.format else "TransData"


SEEN = ("aclnnMaxPool2dWithMask", "aclnnMaxPool2dWithMaskBackward")
KERNELS: dict[str, str | Callable[..., str]] = {
    "Identity": cast,
    "aclnnMaxPool2dWithMask": "MaxPoolWithArgmaxV1",
    "aclnnMaxPool2dWithMaskBackward": "MaxPoolGradWithArgmaxV1",
}
