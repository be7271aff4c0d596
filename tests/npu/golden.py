"""The files of recorded calls: `calls/{Kernel}.txt`, what the stock torch_npu launches for each
fixture row. They are reviewed by people, who compare them with the meaning of the kernel's slots.

A row is not indented, its calls follow it indented; a call of another kernel, which the launch
needs besides its own, is marked with `+`.
"""

from collections.abc import Sequence
from pathlib import Path

from collector.engine.calls import Recorded
from collector.engine.cells import cells_of
from collector.engine.converted import kernels_of
from collector.engine.kernels import kernel_of
from collector.model.case import Case, shape_text
from collector.model.vocabulary import is_absent_dtype
from collector.ops.registry import find_operator
from collector.quality.identity import identity_of
from tests.npu.replayed import Replayed

FOLDER = Path(__file__).parent / "calls"


def golden_path(kernel: str) -> Path:
    return FOLDER / f"{kernel}.txt"


def golden_text(kernel: str, rows: Sequence[Replayed]) -> str:
    """Return the contents of the file of a kernel for these rows."""
    return "\n".join(_block(kernel, row) for row in rows)


def is_own(kernel: str, call: Recorded) -> bool:
    """Return whether a call launches this kernel, or one that the runtime may choose instead."""
    op = find_operator(kernel)
    return op is not None and any(kernel_of(one) in op.family for one in kernels_of(call))


def own_launches(kernel: str, row: Replayed) -> list[Recorded]:
    """Return the launches of a row's kernel; of several, such as conversions around one kernel,
    those with the row's tensors, as in attribution."""
    launched = [one for call in row.calls for one in kernels_of(call) if is_own(kernel, one)]
    if len(launched) < 2:
        return launched
    return [one for one in launched if identity_of(row.case, cells_of(one)).is_proved]


def no_own_call(kernel: str, rows: Sequence[Replayed]) -> str:
    """Return what to do about rows without a call of their kernel; empty if there are none."""
    lost = [row for row in rows if row.calls and not any(is_own(kernel, c) for c in row.calls)]
    if not lost:
        return ""
    made = sorted({call.name for row in lost for call in row.calls})
    return (
        f"{kernel}: none of the recorded calls ({', '.join(made)}) is known to launch it; add "
        f'launched_by=calls("{made[0]}") (the call that does) to its declaration, and record '
        f"again: python -m tools calls {kernel}"
    )


def _block(kernel: str, row: Replayed) -> str:
    lines = [headline(row.case)]
    if row.error:
        lines.append(f"  error: {row.error}")
    for call in row.calls:
        lines.append(f"  {'' if is_own(kernel, call) else '+ '}{call.text}")
    return "\n".join(lines) + "\n"


def headline(case: Case) -> str:
    """Return a row in one line: inputs, outputs, runtime columns."""
    inputs, outputs = case.inputs or (), case.outputs
    text = "; ".join(_slot(slot.shape, slot.dtype, slot.format) for slot in inputs)
    if outputs is None:
        text += " -> N/A"
    else:
        text += " -> " + "; ".join(_slot(s.shape, s.dtype, s.format) for s in outputs)
    named = "".join(f" {name}={value}" for name, value in case.attributes)
    return f"{case.kernel_type}: {text}{named}"


def _slot(shape: tuple[int, ...] | None, dtype: str, format: str) -> str:
    """Return `4,8 FLOAT ND`, `() FLOAT` for an empty cell, `-` for an absent one."""
    if shape is None:
        return "-" if is_absent_dtype(dtype) else f"() {dtype}"
    return f"{shape_text(shape)} {dtype} {format}".strip()
