"""Matrix products: the layout is read off the output, and each layout is the right product."""

import pytest

from collector.ops.catalog._matmul import product_of

pytestmark = pytest.mark.torch

M, N, K = 10, 6, 4
LAYOUTS = {
    "NN": ((M, K), (K, N)),
    "NT": ((M, K), (N, K)),
    "TN": ((K, M), (K, N)),
    "TT": ((K, M), (N, K)),
}


def cell(*shapes):
    return ";".join(",".join(map(str, shape)) for shape in shapes)


@pytest.mark.parametrize("kernel", ["MatMulV2", "MatMulV3"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_recognised_and_multiplied(torch, case_of, build, launch, kernel, layout):
    a_shape, b_shape = LAYOUTS[layout]
    case = case_of(kernel, cell(a_shape, b_shape), "FLOAT;FLOAT", cell((M, N)), "FLOAT")
    assert product_of(case).layout == layout
    call = build(case)
    stored = [as_stored(t, shape) for t, shape in zip(call.args, LAYOUTS[layout], strict=True)]
    equation = f"{'mk' if layout[0] == 'N' else 'km'},{'kn' if layout[1] == 'N' else 'nk'}->mn"
    (result,) = launch(case, call)
    torch.testing.assert_close(result, torch.einsum(equation, *stored))


def as_stored(operand, shape):
    """The operand as it lies in memory, which is how the row names it."""
    stored = operand if operand.is_contiguous() else operand.t()
    assert stored.is_contiguous() and tuple(stored.shape) == shape
    return stored


def test_a_bias_is_added_to_each_row(torch, case_of, build, launch):
    case = case_of("MatMulV3", "10,4;6,4;6", "FLOAT;FLOAT;FLOAT", "10,6", "FLOAT")
    a, b, bias = (call := build(case)).args
    torch.testing.assert_close(launch(case, call)[0], a @ b + bias)


def test_a_float_bias_of_a_16_bit_product_is_converted_once(torch, case_of, build):
    case = case_of("MatMulV3", "10,4;6,4;6", "DT_BF16;DT_BF16;FLOAT", "10,6", "DT_BF16")
    assert {tensor.dtype for tensor in build(case).args} == {torch.bfloat16}
