"""Promotion without torch is torch's promotion."""

from itertools import product

import pytest

from collector.case import Slot
from collector.ops.dtypes import promoted
from collector.vocabulary import dtype_of

SPELLINGS = (
    *("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64"),
    *("FLOAT16", "DT_BF16", "FLOAT", "DOUBLE"),
)
SHAPES = ((3,), None, ())


@pytest.mark.torch
@pytest.mark.parametrize("shapes", list(product(SHAPES, SHAPES)), ids=str)
def test_pairs_promote_as_torch_says(torch, shapes):
    for pair in product(SPELLINGS, SPELLINGS):
        slots = [Slot(shape, dtype, "ND") for shape, dtype in zip(shapes, pair, strict=True)]
        tensors = [
            torch.zeros(slot.shape or (), dtype=getattr(torch, slot.known_dtype.torch_name))
            for slot in slots
        ]
        expected = torch.result_type(*tensors)
        assert getattr(torch, promoted(tuple(slots)).torch_name) is expected, (shapes, pair)


@pytest.mark.fast
def test_an_unknown_dtype_promotes_to_nothing():
    known, unknown = Slot((3,), "FLOAT", "ND"), Slot((3,), "COMPLEX64", "ND")
    assert promoted((known, unknown)) is None
    assert promoted((known, known)) == dtype_of("FLOAT")
