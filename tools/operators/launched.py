"""Write `collector/data/launched.csv`, the C function of each operator's call, from the recorded
calls: `python -m tools launched`."""

from collections.abc import Iterator

from collector.codec.table import table_bytes
from collector.engine.calls import Recorded, parse_call
from collector.engine.kernels import kernel_of
from collector.ops.registry import all_ops, find_operator
from tests.npu.golden import golden_path

_COLUMNS = ("Kernel Type", "Function", "Arguments", "Numbers")


def launched_table() -> bytes:
    """Return one row per function: kernel type, name, a letter for each argument, and whether there
    are floating-point numbers."""
    rows = ((op.kernel, *row) for op in all_ops() for row in sorted(set(_functions(op.kernel))))
    return table_bytes(_COLUMNS, rows)


def _functions(kernel: str) -> Iterator[tuple[str, str, str]]:
    path, op = golden_path(kernel), find_operator(kernel)
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        text = line.strip().removeprefix("+ ")
        if line.startswith("  ") and text.startswith("ACLNN aclnn"):
            call = parse_call(text)
            if op is not None and kernel_of(call) in op.family:
                yield call.name, _arguments(call), "yes" if call.numbers else "no"


def _arguments(call: Recorded) -> str:
    return "".join("s" if argument.startswith('"') else "." for argument in call.arguments)
