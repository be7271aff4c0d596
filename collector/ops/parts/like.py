"""Tensors in the shape and dtype of a slot; a scalar for an empty cell, None without a slot."""

from typing import Any

from collector.model.case import Slot
from collector.ops.spec import TensorMaker


def normal(slot: Slot | None, make: TensorMaker) -> Any:
    return make.normal(slot.shape or (), slot.dtype) if slot else None


def uniform_like(slot: Slot | None, make: TensorMaker, low: float, high: float) -> Any:
    return make.uniform(slot.shape or (), slot.dtype, low, high) if slot else None


def integers(slot: Slot | None, make: TensorMaker, low: int, high: int) -> Any:
    """Return random integers of [low, high)."""
    return make.integers(slot.shape or (), slot.dtype, low, high) if slot else None


def full(slot: Slot | None, make: TensorMaker, value: float) -> Any:
    return make.full(slot.shape or (), slot.dtype, value) if slot else None


def empty(slot: Slot | None, make: TensorMaker) -> Any:
    """Return memory for an output."""
    return make.empty(slot.shape or (), slot.dtype) if slot else None
