"""Matrix products: the layout follows from the output, and each layout gives the right product."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from collector.codec.errors import CaseRejected
from collector.ops.catalog.matmul._product import check_has_product
from collector.ops.catalog.matmul.mat_mul import product_of
from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import CpuMaker, assert_rejected

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
    """Return the operand in its memory layout, as in the row."""
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


NZ = "ND;FRACTAL_NZ"


@pytest.mark.parametrize(
    ("inputs", "output", "layout", "weight"),
    [
        ("136,5120;320,48,16,16", "136,768", "NT", (768, 5120)),
        ("136,768;320,48,16,16", "136,5120", "NN", (768, 5120)),
        # 40 columns are stored as 3 blocks of 16
        ("10,32;2,3,16,16", "10,40", "NT", (40, 32)),
        ("10,40;2,3,16,16", "10,32", "NN", (40, 32)),
        ("10,32;48,32", "10,48", "NT", (48, 32)),
    ],
)
def test_weight_in_blocks_is_read_as_its_matrix(case_of, inputs, output, layout, weight):
    case = case_of("MatMulV2", inputs, "DT_BF16;DT_BF16", output, "DT_BF16", NZ)
    find_operator("MatMulV2").check(case, "npu")
    product = product_of(case)
    assert (product.layout, product.weight) == (layout, weight)


@pytest.mark.parametrize("block", ["18,18", "16,32", "32,16"])
def test_blocks_of_another_size_are_refused(case_of, block):
    case = case_of("MatMulV2", f"10,32;1,1,{block}", "DT_BF16;DT_BF16", "10,16", "DT_BF16", NZ)
    assert_rejected(case, "npu", "'b' & blocks")


def test_blocks_beyond_the_padding_are_refused(case_of):
    case = case_of("MatMulV2", "10,32;2,3,16,16", "DT_BF16;DT_BF16", "10,32", "DT_BF16", NZ)
    assert_rejected(case, "npu", "'b'")


def test_only_the_weight_of_a_product_may_be_in_blocks(case_of):
    cells = ("MatMulV2", "1,1,16,16;16,16", "DT_BF16;DT_BF16", "16,16", "DT_BF16")
    assert_rejected(case_of(*cells, "FRACTAL_NZ;ND"), "npu", "FRACTAL_NZ & input 1")


def in_blocks(case_of, a, b, out, dtype="DT_BF16", kernel="MatMulV2"):
    case = case_of(kernel, f"{a};{b}", f"{dtype};{dtype}", out, dtype, "FRACTAL_NZ;FRACTAL_NZ")
    (output,) = case.outputs
    return replace(case, outputs=(replace(output, format="FRACTAL_NZ"),))


# (rows in memory, numbers in each) of both operands, as passed to aclnn.
@pytest.mark.parametrize(
    ("a", "b", "out", "layout", "sizes"),
    [
        # logits of a vocabulary of 151,936: forward of its hidden states, gradient of its weight
        ("9496,256,16,16", "320,9496,16,16", "320,256,16,16", "NN", (4096, 5120, 151936)),
        ("9496,256,16,16", "320,256,16,16", "320,9496,16,16", "TN", (151936, 5120, 4096)),
        ("4097,1,16,16", "4097,1,16,16", "1,1,16,16", "NT", (16, 16, 65552)),
        # 111 in a row of the first operand, or of the second: blocks of 112
        ("7,40,16,16", "2,7,16,16", "2,40,16,16", "NN", (640, 32, 111)),
        ("40,40,16,16", "7,40,16,16", "7,40,16,16", "NN", (640, 111, 640)),
    ],
)
def test_operands_in_blocks_are_built_from_plain_ones_that_cann_converts(
    case_of, a, b, out, layout, sizes
):
    case = in_blocks(case_of, a, b, out)
    find_operator("MatMulV2").check(case, "npu")
    product = product_of(case)
    assert (product.layout, (product.m, product.n, product.k)) == (layout, sizes)
    assert find_operator("MatMulV2").flops(case) == 2 * product.m * product.n * product.k
    assert_rejected(case, "cpu", "FRACTAL_NZ & NPU & cpu")


def test_plain_operands_have_the_layout_of_the_row(torch, case_of):
    case = in_blocks(case_of, "4097,1,16,16", "4097,1,16,16", "1,1,16,16")
    a, b = find_operator("MatMulV2").build(case, CpuMaker(torch)).args
    assert (a.shape, b.t().shape) == ((16, 65552), (16, 65552))
    assert a.is_contiguous() and b.t().is_contiguous()
    assert torch.mm(a.float(), b.float()).shape == (16, 16)


@pytest.mark.parametrize(
    ("a", "b", "out", "more"),
    [
        ("80,40,16,16", "40,80,16,16", "40,40,16,16", {}),  # rows of 640 and more: read efficiently
        ("2,1,16,16", "1,2,16,16", "1,1,16,16", {}),  # small
        ("4097,1,16,16", "1,4097,16,16", "1,1,16,16", {}),  # a long k to few numbers
        ("4097,1,16,16", "4097,1,16,16", "1,1,16,16", {"kernel": "MatMul"}),
    ],
)
def test_operands_in_blocks_that_cann_would_not_convert_are_refused(case_of, a, b, out, more):
    case = in_blocks(case_of, a, b, out, **more)
    assert_rejected(case, "npu", "operands & FRACTAL_NZ")


def test_operands_in_blocks_that_cannot_be_multiplied_are_refused(case_of):
    case = in_blocks(case_of, "9496,256,16,16", "320,9490,16,16", "320,256,16,16")
    assert_rejected(case, "npu", "'b'")


def test_linear_layer_accepts_both_operands_in_blocks(torch, case_of):
    """By torch_npu's own function, independently of CANN's conversions."""
    case = in_blocks(case_of, "2,1,16,16", "2,3,16,16", "3,1,16,16")
    op, make = find_operator("MatMulV2"), CpuMaker(torch)
    op.check(case, "npu")
    requested = []
    npu = SimpleNamespace(npu_linear=lambda x, weight: requested.append((x.shape, weight.shape)))
    make.torch = SimpleNamespace(ops=SimpleNamespace(npu=npu))
    make.normal = lambda shape, dtype: torch.zeros(shape)
    call = op.npu_call(case, make)
    op.npu.run(torch.mm, *call.args, **call.kwargs)
    assert requested == [((16, 32), (48, 32))]
    assert op.flops(case) == 2 * 16 * 48 * 32


def test_operands_of_32_bits_are_never_converted(case_of):
    case = in_blocks(case_of, "8194,1,16,8", "8194,1,16,8", "2,1,16,8", dtype="FLOAT")
    assert_rejected(case, "npu", "FRACTAL_NZ & input 1")


def test_a_plain_output_of_operands_in_blocks_is_refused(case_of):
    shapes = "4097,1,16,16;4097,1,16,16"
    cells = ("MatMulV2", shapes, "DT_BF16;DT_BF16", "16,16", "DT_BF16", "FRACTAL_NZ;FRACTAL_NZ")
    assert_rejected(case_of(*cells), "npu", "output & FRACTAL_NZ")


def test_an_npu_launches_a_bias_with_the_product(torch, case_of, build):
    case = case_of("MatMulV3", "10,4;6,4;6", "FLOAT;FLOAT;FLOAT", "10,6", "FLOAT")
    a, b, bias = build(case).args
    launch = find_operator("MatMulV3").npu.run
    torch.testing.assert_close(launch(torch.mm, a, b, bias), a @ b + bias)
    torch.testing.assert_close(launch(torch.mm, a, b), a @ b)


@pytest.mark.parametrize(
    ("inputs", "output", "equation"),
    [
        ("3,10,8;3,8,6", "3,10,6", "bmk,bkn->bmn"),
        ("3,10,8;3,6,8", "3,10,6", "bmk,bnk->bmn"),
        ("3,8,10;3,8,6", "3,10,6", "bkm,bkn->bmn"),
        ("2,3,10,8;2,3,6,8", "2,3,10,6", "abmk,abnk->abmn"),
        ("3,8,8;3,8,8", "3,8,8", "bmk,bkn->bmn"),
        ("8,8;8,8", "8,8", "mk,nk->mn"),
    ],
)
def test_batch_layouts_are_recognised_like_those_of_matrices(
    torch, case_of, build, launch, inputs, output, equation
):
    case = case_of("BatchMatMulV2", inputs, "FLOAT;FLOAT", output, "FLOAT")
    call = build(case)
    shapes = [slot.shape for slot in case.inputs]
    stored = [
        t if t.is_contiguous() and tuple(t.shape) == shape else t.transpose(-2, -1)
        for t, shape in zip(call.args, shapes, strict=True)
    ]
    torch.testing.assert_close(launch(case, call)[0], torch.einsum(equation, *stored))


@pytest.mark.parametrize("kernel", ["BatchMatMulV2", "BatchMatMulV3", "BatchMatMulNd"])
def test_one_batch_of_weights_is_broadcast(case_of, kernel):
    case = case_of(kernel, "3,10,8;1,8,6", "FLOAT;FLOAT", "3,10,6", "FLOAT")
    op = find_operator(kernel)
    op.check(case, "cpu")
    assert op.flops(case) == 2 * 3 * 10 * 8 * 6


def test_two_batches_that_do_not_broadcast_are_refused(case_of):
    case = case_of("BatchMatMulV2", "3,10,8;2,8,6", "FLOAT;FLOAT", "3,10,6", "FLOAT")
    assert_rejected(case, "cpu", "shapes that broadcast")


HEADS = "hmk,hkn->mhn"
TOKENS = "mhk,hkn->mhn"


@pytest.mark.parametrize(
    ("kernel", "x", "equation"),
    [
        ("TransposeBatchMatMul", "4,3,128", HEADS),
        ("TransposeBatchMatMul", "3,4,128", TOKENS),
        ("batch_matmul_transpose_0", "3,4,128", TOKENS),
    ],
)
def test_transposed_batch_product_returns_tokens_first(
    torch, case_of, build, launch, kernel, x, equation
):
    case = case_of(kernel, f"{x};4,128,128", "DT_BF16;DT_BF16", "3,4,128", "DT_BF16")
    call = build(case, wide=True)
    tensor, weight = call.args[:2]
    if equation == TOKENS:
        tensor = tensor.transpose(0, 1)
    (result,) = launch(case, call)
    assert result.is_contiguous()
    torch.testing.assert_close(result, torch.einsum(equation, tensor, weight))


def test_npu_call_has_the_permutation_of_the_input(torch, case_of):
    build = find_operator("TransposeBatchMatMul").npu.build

    def order(x, out):
        cells = ("TransposeBatchMatMul", f"{x};4,128,128", "DT_BF16;DT_BF16", out, "DT_BF16")
        return build(case_of(*cells), CpuMaker(torch)).kwargs["perm_x1"]

    assert order("4,3,128", "3,4,128") == (0, 1, 2)
    assert order("3,4,128", "3,4,128") == (1, 0, 2)
    assert order("4,4,128", "4,4,128") == (0, 1, 2)


@pytest.mark.parametrize(
    ("x", "weight", "out"),
    [
        ("4,3,64", "4,64,128", "3,4,128"),
        ("4,3,128", "4,128,64", "3,4,64"),
        # heads * K is 65536, where the tokens are first
        ("3,128,512", "128,512,128", "3,128,128"),
    ],
)
def test_unsupported_sizes_are_refused(case_of, x, weight, out):
    case = case_of("TransposeBatchMatMul", f"{x};{weight}", "DT_BF16;DT_BF16", out, "DT_BF16")
    assert_rejected(case, "npu", "128")


def test_int8_weight_is_dequantised(torch, case_of, build, launch):
    dtypes = "FLOAT16;INT8;FLOAT16;FLOAT16;DT_UNDEFINED;DT_UNDEFINED;FLOAT16"
    cells = ("10,32;64,32;1,64;1,64;;;64", dtypes, "10,64", "FLOAT16")
    case = case_of("WeightQuantBatchMatmulV2", *cells)
    call = build(case, wide=True)
    x, weight, scale = (tensor.double() for tensor in call.args)
    offset, bias = (call.kwargs[name].double() for name in ("antiquant_offset", "bias"))
    expected = x @ ((weight + offset) * scale) + bias
    torch.testing.assert_close(launch(case, call)[0].double(), expected, rtol=1e-5, atol=1e-5)


WIDE = ("MatMulV2", "10,32;64,32", "DT_BF16;DT_BF16", "10,64", "FLOAT")


def test_product_with_a_wider_output_is_computed_in_it(torch, case_of, build, launch):
    case = case_of(*WIDE)
    call = build(case)
    (actual,) = launch(case, call)
    a, b = call.args
    assert (actual.dtype, a.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(actual.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


class Dispatcher:
    """Return torch of a release that has these kernels for NPUs; None has not even the schema."""

    def __init__(self, kernels):
        self.kernels = kernels
        self._C = self

    def _dispatch_has_kernel_for_dispatch_key(self, name, key):
        if self.kernels is None:
            raise RuntimeError(f"operator {name} does not exist")
        return (name, key) in self.kernels


@pytest.mark.parametrize("kernels", [None, [("aten::mm", "PrivateUse1")]])
def test_release_without_wide_outputs_is_refused_with_one_that_has_them(kernels):
    make = SimpleNamespace(torch=Dispatcher(kernels))
    with pytest.raises(CaseRejected, match=r"2\.10\.0\.post4") as rejection:
        check_has_product(make, "aten::mm.dtype")
    assert "2.9.0" in str(rejection.value)
    there = SimpleNamespace(torch=Dispatcher([("aten::mm.dtype", "PrivateUse1")]))
    check_has_product(there, "aten::mm.dtype")


def test_batched_product_with_a_wider_output_is_computed_in_it(torch, case_of, build, launch):
    case = case_of("BatchMatMulV2", "2,3,4;2,4,5", WIDE[2], "2,3,5", "FLOAT")
    a, b = (call := build(case)).args
    (actual,) = launch(case, call)
    assert (actual.dtype, a.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(actual.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ((*WIDE[:4], "FLOAT16"), "output & dtype & FLOAT & DT_BF16"),
        (("MatMulV2", "10,32;64,32;64", "DT_BF16;DT_BF16;FLOAT", *WIDE[3:]), "bias"),
        (("BatchMatMulV2", "2,3,4;2,4,5", WIDE[2], "2,3,5", "FLOAT16"), "FLOAT & DT_BF16"),
        (("BatchMatMulV2", "1,3,4;2,4,5", WIDE[2], "2,3,5", "FLOAT"), "(B,M,K) & (K,N)"),
        (("BatchMatMulV2", "3,4;4,5", WIDE[2], "3,5", "FLOAT"), "(B,M,K) & (K,N)"),
    ],
)
def test_unsupported_output_is_refused(case_of, cells, message):
    assert_rejected(case_of(*cells), "npu", message)


def test_npu_arguments_of_a_product_are_those_of_the_reference():
    assert find_operator("MatMulV2").npu.build is find_operator("BatchMatMulV2").npu.build is None
