"""The reading of a row by the declaration of its operator.

Sources spell one call differently. A profiler may drop absent arguments in the middle, print them
as empty slots, or print placeholders; recordings print plain tensors as NCL or NCHW. All of them
are one case here: each tensor is at the slot of its argument, and what does not change the kernel
does not count. Rows without a declaration are read by position.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from collector.model.case import Case, Slot, without_blanks
from collector.model.vocabulary import (
    LENGTH_COLUMNS,
    OPERATOR_FILE,
    RUNTIME_PREFIX,
    TORCH_VALUES,
    plain_format,
)
from collector.ops.registry import find_operator
from collector.ops.spec import OpSpec, as_printed

_FIRST = (0,)
# Columns of the consumer's tables of attention: names of the engine's own states, and what follows
# from the tensors and the lengths, if these are known. Values of indices change from step to step.
_STATES = frozenset(
    (*(RUNTIME_PREFIX + name for name in ("attn_state", "kv_cache_mode")), TORCH_VALUES)
)
DERIVED = frozenset(
    RUNTIME_PREFIX + name
    for name in (
        *("actual_seq_lengths_shape", "actual_seq_lengths_kv_shape"),
        *("block_table_shape", "block_table_valid_blocks"),
    )
)


def as_declared(case: Case) -> Case:
    """Return the case with each tensor at the slot of its argument, and the dimensions that do not
    change the kernel marked as free. A declared case is returned unchanged."""
    op = find_operator(case.kernel_type)
    if case.inputs is None:
        return case
    if op is None:
        return _of_file(case) if case.attribute(OPERATOR_FILE) else case
    if op.placed is not as_printed:
        case = op.placed(case)
        case = replace(case, inputs=without_blanks(case.inputs or ()))
    inputs, outputs = case.inputs or (), case.outputs
    inputs, outputs = _spelled(inputs), None if outputs is None else _spelled(outputs)
    if op.pools:
        free = dict(_free_dimensions(op, inputs, case.attributes))
        inputs = tuple(
            replace(slot, free=free[at]) if at in free else slot for at, slot in enumerate(inputs)
        )
        pools = {inputs[at].shape for at, dimensions in free.items() if dimensions == _FIRST}
        outputs = outputs and tuple(
            replace(slot, free=_FIRST) if slot.shape in pools else slot for slot in outputs
        )
    idle = describing(name for name, _ in case.attributes) if case.attributes else ()
    if not idle and inputs is case.inputs and outputs is case.outputs:
        return case  # as most rows
    attributes = tuple(one for one in case.attributes if one[0] not in idle)
    notes = (*case.notes, *(one for one in case.attributes if one[0] in idle))
    return replace(case, inputs=inputs, outputs=outputs, attributes=attributes, notes=notes)


def _of_file(case: Case) -> Case:
    """Return a case of a user's file of operators, which readers may not have: by position."""
    outputs = None if case.outputs is None else _spelled(case.outputs)
    return replace(case, inputs=_spelled(case.inputs or ()), outputs=outputs)


def describing(columns: Iterable[str]) -> frozenset[str]:
    """Return those of a declared row's columns that only describe what the others determine."""
    names = frozenset(columns)
    return names & (_STATES | DERIVED if names & LENGTH_COLUMNS else _STATES)


def _spelled(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
    """Return the slots with one spelling of plain formats."""
    formats = [plain_format(slot.format) for slot in slots]
    if formats == [slot.format for slot in slots]:
        return slots
    return tuple(replace(slot, format=layout) for slot, layout in zip(slots, formats, strict=True))


def _free_dimensions(
    op: OpSpec, inputs: Sequence[Slot], attributes: Iterable[tuple[str, str]]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the positions of inputs whose sizes do not change the kernel, with the dimensions:
    pages of pools, and the width of tables that list them. Where the lengths of requests are not
    known, only the width shows how long they may be."""
    given = {
        name: at
        for at, name in enumerate(op.slots)
        if at < len(inputs) and inputs[at].shape is not None
    }
    for pool, table in op.pools.items():
        if pool in given and (not table or table in given):
            yield given[pool], _FIRST
    if any(name in LENGTH_COLUMNS for name, _ in attributes):
        for table in sorted(set(op.pools.values()) & given.keys()):
            if shape := inputs[given[table]].shape:
                yield given[table], (len(shape) - 1,)
