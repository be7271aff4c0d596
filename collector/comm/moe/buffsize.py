"""HCCL_BUFFSIZE: the room that kernels of experts have in each other's memory."""

import os
from collections.abc import Mapping

HCCL_BUFFSIZE = "HCCL_BUFFSIZE"


def buffsize_settings(
    backend: str, wanted_mb: int, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """What ranks are started with, besides their environment, so that they have `wanted_mb` MiB:
    nothing where nobody reads it, or where somebody has said otherwise."""
    if backend != "npu" or HCCL_BUFFSIZE in environment:
        return {}
    return {HCCL_BUFFSIZE: str(wanted_mb)}
