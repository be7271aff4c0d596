"""Promotion without torch equals torch's promotion."""

from itertools import product

import pytest

from collector.model.case import Slot
from collector.model.vocabulary import dtype_of
from collector.ops.catalog.elementwise._elementwise import promoted

SPELLINGS = (
    *("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64"),
    *("FLOAT16", "DT_BF16", "FLOAT", "DOUBLE"),
)
SHAPES = ((3,), None, ())


@pytest.mark.torch
def test_pairs_promote_as_torch_does(torch):
    wrong = {}
    for shapes, pair in product(product(SHAPES, SHAPES), product(SPELLINGS, SPELLINGS)):
        slots = [Slot(shape, dtype, "ND") for shape, dtype in zip(shapes, pair, strict=True)]
        tensors = [
            torch.zeros(slot.shape or (), dtype=getattr(torch, slot.known_dtype.torch_name))
            for slot in slots
        ]
        found = getattr(torch, promoted(tuple(slots)).torch_name)
        if found is not torch.result_type(*tensors):
            wrong[shapes, pair] = found
    assert wrong == {}


@pytest.mark.fast
def test_unknown_dtype_is_not_promoted():
    known, unknown = Slot((3,), "FLOAT", "ND"), Slot((3,), "COMPLEX64", "ND")
    assert promoted((known, unknown)) is None
    assert promoted((known, known)) == dtype_of("FLOAT")
