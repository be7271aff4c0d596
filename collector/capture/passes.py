"""A program that repeats a pass of a user's file: `python -m collector.capture.passes FILE MISSES
TIMES`, with the pass as the only case of a file of misses. `opmeter capture pass` captures it."""

import sys
from pathlib import Path
from typing import Any

import torch

from collector.model.demand import read_misses, record_of_cells
from collector.ops.own import declare_files, find_operator, read_operator_file
from collector.ops.spec import OpSpec
from collector.replay.tensors import CaseTensors

_SEED = 0


class _Pass(torch.nn.Module):  # type: ignore[misc]
    """The outermost module, whose calls are the steps of the capture."""

    def __init__(self, op: OpSpec) -> None:
        super().__init__()
        self._op = op

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        assert self._op.launch is not None
        return self._op.launch(*args, **kwargs)


def main(file: str, missed: str, times: str) -> None:
    """Launch the missed case of a file that many times."""
    declare_files([read_operator_file(Path(file))])
    (one,) = read_misses(Path(missed))
    record = record_of_cells(one.kernel_type, one.cells)
    op = find_operator(record.kernel_type)
    assert op is not None
    call, repeated = op.build(record.case, CaseTensors("cpu", _SEED)), _Pass(op)
    with torch.no_grad():
        for _ in range(int(times)):
            repeated(*call.args, **call.kwargs)


if __name__ == "__main__":
    main(*sys.argv[1:])
