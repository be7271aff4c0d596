"""Which tensors a Triton kernel reads and writes, as determined in the process of an engine."""

import sys
from types import SimpleNamespace

import pytest

from collector.engine.calls import parse_call
from collector.engine.cells import cells_of
from collector.engine.engine_process import SITE

pytestmark = pytest.mark.torch

tl = SimpleNamespace()  # the kernels below are parsed, and never run


def _normalise(rows, sums, n):
    values = tl.load(rows + tl.arange(0, n))
    tl.store(rows + tl.arange(0, n), values)
    tl.atomic_add(sums, values)


normalise = SimpleNamespace(fn=_normalise)


def _gather(table, index, out, unused, absent, weights, sums, n):
    block = tl.make_block_ptr(base=out, shape=(n,))
    for _ in range(n):
        row = tl.load(index)
        value = tl.load(table + row * n)
        if absent is not None:
            value += tl.load(absent)
        tl.store(block, value)
        block = tl.advance(block, (n,))
        index += 1
    normalise(weights, sums=sums, n=n)


def test_tensors_of_a_kernel_are_those_that_it_loads_and_stores(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(SITE))
    try:
        from opmeter_pointers import layout

        names = ("table", "index", "out", "unused", "absent", "weights", "sums", "n")
        tensor = torch.zeros(1)
        given = dict.fromkeys(names, tensor) | {"absent": None, "n": 8}
        found = layout(SimpleNamespace(fn=_gather), given)
    finally:
        sys.modules.pop("opmeter_pointers", None)
    assert found == "0 1 3 5 6 -> 2 5 6"


def test_kernel_has_the_tensors_of_its_call():
    text = 'CUSTOM triton.a(bf16[4,8]:ND, 8, i32[4]:ND, f32[4]:ND, "grid", ints(2), "0 2 -> 3")'
    cells = cells_of(parse_call(text))
    assert cells["Input Shapes"] == '"4,8;4"'
    assert cells["Input Data Types"] == "DT_BF16;INT32"
    assert cells["Output Shapes"] == '"4"'
    assert "Input Shapes" not in cells_of(parse_call('CUSTOM triton.a(8, "grid", ints(2))'))
