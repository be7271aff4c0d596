"""Whether all of some dimensions are true."""

from typing import Any

from collector.ops.catalog.rowwise._reduce import fold_one_or_all, truth
from collector.ops.dtypes import inputs_are


def _reference(torch: Any, x: Any, dims: tuple[int, ...], stays: bool) -> Any:
    return fold_one_or_all(torch.all, x, dims, stays)


OP = truth("ReduceAll", "torch.all", _reference, (inputs_are(("BOOL",), (0,)),))
