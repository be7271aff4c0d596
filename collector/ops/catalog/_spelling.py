"""A slot's dtype in one spelling, for tables of the combinations that an operator takes."""

from collector.case import Slot


def spelling(slot: Slot | None) -> str:
    """`INT8` for INT8 and DT_INT8; empty for no slot, and for what torch has no dtype for."""
    return slot.known_dtype.spelling if slot and slot.known_dtype else ""
