"""A maker of tensors on the cpu, for the tests of declarations, and cases written in one line."""

import pytest

from collector.codec.errors import CaseRejected
from collector.model.case import case_from_cells, logical_shape
from collector.model.vocabulary import BASE_CELLS, dtype_of
from collector.ops.registry import find_operator


class CpuMaker:
    """Makes tensors as `TensorMaker` specifies. With `wide`, 16-bit types become float32, as on a
    machine that cannot compute in them."""

    def __init__(self, torch, wide=False):
        self.torch = torch
        self.wide = wide
        self.random = torch.Generator().manual_seed(7)

    def dtype(self, spelling):
        known = dtype_of(spelling)
        narrow = known.is_floating and known.item_bits == 16
        return self.torch.float32 if narrow and self.wide else getattr(self.torch, known.torch_name)

    def normal(self, shape, dtype):
        torch_dtype = self.dtype(dtype)
        if torch_dtype == self.torch.bool:
            return self.integers(shape, dtype, 0, 2)
        if not torch_dtype.is_floating_point:
            return self.integers(shape, dtype, 1, 5)
        return self.torch.randn(tuple(shape), generator=self.random).to(torch_dtype)

    def uniform(self, shape, dtype, low, high):
        fractions = self.torch.rand(tuple(shape), generator=self.random)
        return (low + (high - low) * fractions).to(self.dtype(dtype))

    def integers(self, shape, dtype, low, high):
        numbers = self.torch.randint(low, high, tuple(shape), generator=self.random)
        return numbers.to(self.dtype(dtype))

    def permutation(self, n, dtype):
        return self.torch.randperm(n, generator=self.random).to(self.dtype(dtype))

    def full(self, shape, dtype, value):
        return self.torch.full(tuple(shape), value, dtype=self.dtype(dtype))

    def empty(self, shape, dtype):
        return self.torch.empty(tuple(shape), dtype=self.dtype(dtype))

    def tensor(self, values, dtype):
        return self.torch.tensor(values, dtype=self.dtype(dtype))

    def stored(self, tensor, format):
        return tensor


def is_named(tensor, slot, dtype):
    """Return whether a tensor is that of a row's slot: its shape, or its contents in blocks,
    including the number of channels. The shape of a filter's blocks is not known, for packed
    numbers neither that nor the dtype."""
    if not slot.known_dtype.torch_name:
        return True
    lying = logical_shape(slot)
    of_channels = lying[1:2] if slot.format == "NC1HWC0" and lying[::2] == (1, 1) else lying
    scalar = () if slot.shape == (1,) else lying  # which rows may write as one element too
    shapes = (slot.shape or (), lying, of_channels, scalar)
    return tensor.dtype == dtype and (slot.format == "FRACTAL_Z" or tuple(tensor.shape) in shapes)


def assert_rejected(case, backend, words):
    """Assert that a backend rejects a case, that the error names the case, and that the rule has
    all of these words: `gamma & row`."""
    with pytest.raises(CaseRejected) as rejection:
        find_operator(case.kernel_type).check(case, backend)
    assert case.describe() in str(rejection.value)
    rule = str(rejection.value).replace(case.describe(), "")
    assert [word for word in words.split(" & ") if word not in rule] == [], rule


def gradients(torch, function, inputs, upstream):
    """Return the gradients of a function of several tensors by autograd."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    return torch.autograd.grad(function(*leaves), leaves, upstream)


def _case(kernel, inputs, input_dtypes, outputs, output_dtypes, input_formats=""):
    formats = [
        ";".join("ND" for _ in dtypes.split(";")) for dtypes in (input_dtypes, output_dtypes)
    ]
    cells = (inputs, input_dtypes, input_formats or formats[0], outputs, output_dtypes, formats[1])
    return case_from_cells(kernel, dict(zip(BASE_CELLS[2:], cells, strict=True)))


@pytest.fixture(scope="session")
def case_of():
    """(kernel, input shapes, dtypes, output shapes, dtypes) -> Case; formats are ND."""
    return _case


@pytest.fixture(scope="session")
def torch():
    """torch on one thread, so that small tensors don't wait for each other."""
    module = pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")
    before = module.get_num_threads()
    module.set_num_threads(1)
    yield module
    module.set_num_threads(before)


@pytest.fixture(scope="session")
def build(torch):
    """case -> Call, after the declaration has accepted the case."""

    def build_case(case, wide=False):
        op = find_operator(case.kernel_type)
        op.check(case, "cpu")
        return op.build(case, CpuMaker(torch, wide and not op.moves_data))

    return build_case


@pytest.fixture(scope="session")
def launch(torch):
    """(case, call) -> the result of the reference, as a tuple."""

    def launch_case(case, call):
        outputs = find_operator(case.kernel_type).run_reference(torch, *call.args, **call.kwargs)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return launch_case


def four_bits(torch, packed):
    """The numbers of four bits in INT32, in float64."""
    shifted = [packed >> 4 * place & 15 for place in range(8)]
    numbers = torch.stack(shifted, -1).flatten(-2).double()
    return numbers - 16 * (numbers > 7)


def by_row(scale, rows):
    """A scale (E,N) or (E,G,N) as (E,rows,N)."""
    groups = scale.double().view(len(scale), -1, scale.shape[-1])
    return groups.repeat_interleave(rows // groups.shape[1], 1)
