"""Indices as a kernel writes them. Ascend's kernels of sorting and searching write INT32, and
aclnn converts that for torch, which wants INT64."""

from typing import Any


def narrowed(indices: Any, dtype: Any) -> Any:
    """The indices in the dtype that the row names, without a kernel of its own: an INT32 view
    sees the lower half of each number (both are little-endian, and indices are not negative)."""
    if indices.dtype == dtype:
        return indices
    return indices.unsqueeze(-1).view(dtype)[..., 0]
