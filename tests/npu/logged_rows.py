"""`python -m tests.npu.logged_rows OUT`: the process on the fake NPU that launches fixture rows
while their calls are logged, and compares the cells of the log with those of the kernel's row.

OUT gets a JSON object: for each kernel, how many rows agree, and the first one that does not. The
kernels whose cells are not logged (`OpSpec.is_shown_otherwise`) are compared, too.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from collector.codec.errors import OpmeterError
from collector.engine.calls import read_calls
from collector.engine.cells import cells_of
from collector.engine.converted import kernels_of
from collector.model.case import case_from_cells
from collector.ops.registry import find_operator
from tests.fixtures.op_rows import rows_alone
from tests.npu.golden import is_own
from tests.npu.replay_rows import Host, _launcher, open_host
from tests.npu.replayed import kernels_with_rows


def main(out: Path) -> None:
    host = open_host(Path(os.environ["FAKE_CANN_LOG"]))
    found: dict[str, dict[str, Any]] = {}
    for kernel in kernels_with_rows():
        counts: Counter[str] = Counter()
        first = ""
        for number in range(len(rows_alone(kernel))):
            try:
                outcome = compared(host, kernel, number)
            except (OpmeterError, RuntimeError, TypeError, ValueError):
                continue  # tests/npu/test_npu_calls.py is about rows that are refused
            for agrees, text in outcome:
                counts["equal" if agrees else "other"] += 1
                first = first or ("" if agrees else text)
        found[kernel] = {**counts, "first": first}
    out.write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # the end of the fake is irrelevant here, and slow


def compared(host: Host, kernel: str, number: int) -> list[tuple[bool, str]]:
    """Launch a row; return for each pair of a logged call and a row of its kernel whether they
    agree. The list is empty where either does not know the tensors."""
    from collector.capture import custom_calls
    from collector.replay.tensors import CaseTensors

    op, case = find_operator(kernel), rows_alone(kernel)[number].case
    assert op is not None
    op.check(case, "npu")
    launcher = _launcher(host, op, case)
    call = launcher.build(case, CaseTensors("npu:0", 7, frozenset(), host.cast))
    host.synchronize()
    offset = host.log.stat().st_size
    custom_calls.are_shown = lambda ops: True
    with custom_calls.CustomCalls(0) as calls:
        calls.step = 0
        launcher.run(*call.args, **call.kwargs)
        calls.step = None
    host.synchronize()
    launched = [
        one
        for made in read_calls(host.log, offset)
        for one in kernels_of(made)
        if is_own(kernel, one)
    ]
    logged = [line for line in calls.lines if kernel in line["kernels"]]
    if len(launched) != len(logged):
        return []
    pairs = [(cells_of(one), line.get("cells")) for one, line in zip(launched, logged, strict=True)]
    return [
        (case_from_cells(kernel, shown) == case_from_cells(kernel, cells), f"{shown} {cells}")
        for shown, cells in pairs
        if shown and cells
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
