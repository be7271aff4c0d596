"""What operators around layer normalisation share."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.norm._rms_norm import rows_shape
from collector.ops.slots import agrees

EPSILON = 1e-5


def layer_norm(torch: Any, x: Any, gamma: Any, beta: Any) -> tuple[Any, Any, Any]:
    """(x - mean) / deviation * gamma + beta, with the mean and 1 / deviation of each row as
    FLOAT: a cpu would give them in the dtype of gamma."""
    y, mean, rstd = torch.native_layer_norm(x, gamma.shape, gamma, beta, EPSILON)
    return y, mean.float(), rstd.float()


def statistics_fit(case: Case, gamma: int, outputs: tuple[int, ...]) -> bool:
    """Whether these outputs have one number a row, and gamma the last dimensions of x."""
    rows = rows_shape(case, 0, gamma)
    return rows is not None and all(agrees(case, position, rows) for position in outputs)
