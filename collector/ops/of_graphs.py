"""Rows of a graph that no public call launches alone.

Facts of decode steps that torchair compiled, as op_summary shows them.
"""

from collector.case import Case, Slot

_FUSED = "fused by the graph"
_NAMED = {
    "AutomaticBufferFusionOp": f"{_FUSED}: which operators it made one of is not in the row",
    "Data": "no kernel of its own: an input of a graph",
}
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "RealDiv"})
_NARROW = frozenset({"FLOAT16", "DT_BF16"})


def of_graph_alone(case: Case) -> str:
    """Why no call launches the kernel of a row; empty where one may."""
    if case.kernel_type in _ARITHMETIC and _is_cast(case.inputs or (), case.outputs or ()):
        return f"{_FUSED}: it casts its result to 16 bits, which a Cast does elsewhere"
    return _NAMED.get(case.kernel_type, "")


def _is_cast(inputs: tuple[Slot, ...], outputs: tuple[Slot, ...]) -> bool:
    """FLOAT alone goes in, and 16 bits come out."""
    came, given = ({_spelling(slot) for slot in slots} for slots in (inputs, outputs))
    return came == {"FLOAT"} and bool(given) and given <= _NARROW


def _spelling(slot: Slot) -> str:
    return slot.known_dtype.spelling if slot.known_dtype else slot.dtype
