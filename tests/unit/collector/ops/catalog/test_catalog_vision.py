"""Convolutions and pooling in blocks, and conversions into them, against independent sources."""

from itertools import product

import pytest

from collector.codec.errors import CaseRejected
from collector.model.case import case_from_cells
from collector.model.vocabulary import BASE_CELLS
from collector.ops.catalog.vision._images import SlidingWindow, read_window
from collector.ops.registry import find_operator
from tests.fixtures.op_rows import rows_of
from tests.unit.collector.ops.conftest import assert_rejected

MASKED = "NC1HWC0:1"


def case_in(kernel, *cells):
    """A case by its six cells: shapes, dtypes, formats, of inputs and outputs."""
    return case_from_cells(kernel, dict(zip(BASE_CELLS[2:], cells, strict=True)))


def conv2d(x, w, out, dtype="FLOAT"):
    formats = "NC1HWC0;FRACTAL_Z"
    return case_in("Conv2D", f"{x};{w}", f"{dtype};{dtype}", formats, out, dtype, "NC1HWC0")


# --- what a row does not contain -------------------------------------------------------------


@pytest.mark.fast
@pytest.mark.parametrize(
    ("image", "output", "window", "stride", "padding"),
    [
        (224, 55, 11, 4, 2),  # AlexNet's first layer
        (27, 27, 5, 1, 2),
        (13, 13, 3, 1, 1),
        (55, 27, 3, 2, 0),  # its pooling
        (224, 112, 7, 2, 3),  # ResNet's first layer, and its other kinds
        (112, 56, 3, 2, 1),
        (56, 28, 1, 2, 0),
        (14, 14, 1, 1, 0),
        (224, 112, 2, 2, 0),  # VGG's pooling
        (224, 14, 16, 16, 0),  # patches of a vision transformer
        (7, 1, 7, 7, 0),  # a whole image
    ],
)
def test_window_of_known_layers_is_derived_from_their_sizes(image, output, window, stride, padding):
    found = read_window((image, image), (output, output), window * window)
    assert found == SlidingWindow((window, window), (stride, stride), (padding, padding))


@pytest.mark.fast
def test_non_square_window_is_accepted_only_if_the_sizes_determine_it():
    assert read_window((17, 17), (17, 17), 7) is None  # 1 by 7, or 7 by 1
    assert read_window((17, 17), (17, 11), 7) == SlidingWindow((1, 7), (1, 1), (0, 0))
    assert read_window((8, 8), (80, 80), 9) is None
    assert read_window((8, 8), (0, 8), 9) is None


@pytest.mark.fast
@pytest.mark.parametrize(
    "case",
    [
        conv2d("2,3,7,7,8", "28,2,16,8", "2,3,7,7,8"),  # 28 lines of three blocks
        conv2d("2,3,7,7,8", "27,4,16,8", "2,3,7,7,8"),  # 64 channels out, 24 in the output
        conv2d("2,3,7,7,16", "27,2,16,16", "2,3,7,7,16"),  # FLOAT has eight in a block
        conv2d("2,3,7,7,8", "27,2,16,8", "2,3,99,99,8"),
        case_in(
            *("TransData", "2,3,7,7", "FLOAT", "NCHW", "2,1,7,7,4", "FLOAT", "NC1HWC0"),
        ),
        case_in("TransData", "40,24", "FLOAT", "ND", "3,3,16,8", "FLOAT", "FRACTAL_NZ"),
        case_in("TransData", "2,1,7,7,8", "FLOAT", "NC1HWC0", "2,9,7,7", "FLOAT", "NCHW"),
    ],
)
def test_unsupported_format_conversions_are_refused(case):
    to_nz = case.outputs[0].format == "FRACTAL_NZ"
    assert_rejected(case, "npu", "FRACTAL_NZ" if to_nz else "NC1HWC0")


@pytest.mark.fast
def test_outputs_of_other_sizes_than_the_images_are_refused():
    twice_as_many_images = conv2d("2,3,7,7,8", "27,2,16,8", "4,3,7,7,8")
    assert_rejected(twice_as_many_images, "npu", "'y'")
    short_mask = case_in(
        *("MaxPoolWithArgmaxV1", "2,2,13,13,16", "FLOAT", MASKED),
        *("2,2,6,6,16;2,2,9,3,16", "FLOAT;UINT16", f"{MASKED};{MASKED}"),
    )
    assert_rejected(short_mask, "npu", "'mask'")


@pytest.mark.fast
def test_a_bias_of_padded_channels_is_refused():
    formats = "NC1HWC0;FRACTAL_Z;NCHW"
    for bias, is_taken in ((24, True), (20, False)):
        inputs = f"2,3,7,7,8;27,2,16,8;{bias}"
        case = case_in(
            *("Conv2D", inputs, "FLOAT;FLOAT;FLOAT", formats, "2,3,7,7,8", "FLOAT", "NC1HWC0")
        )
        assert (find_operator("Conv2D").rejection_reason(case, "npu") == "") is is_taken


@pytest.mark.fast
def test_costs_of_a_real_layer():
    case = conv2d("32,1,224,224,8", "121,4,16,8", "32,8,55,55,8")
    op = find_operator("Conv2D")
    op.check(case, "cpu")
    assert op.flops(case) == 2 * (32 * 64 * 55 * 55) * (8 * 11 * 11)
    assert op.traffic(case) == 4 * (32 * 8 * 224 * 224 + 121 * 4 * 16 * 8 + 32 * 64 * 55 * 55)


@pytest.mark.fast
def test_elements_between_windows_are_not_counted_as_read():
    case = conv2d("1,1,8,8,8", "1,1,16,8", "1,1,4,4,8")
    assert find_operator("Conv2D").traffic(case) == 4 * (8 * 4 * 4 + 16 * 8 + 8 * 4 * 4)


# --- numbers ---------------------------------------------------------------------------------


def unfolded(torch, x, window):
    """Return (N, C, area, outputs): the elements of each window; outside of the image there is
    `nan`."""
    (ph, pw), (kh, kw), (sh, sw) = window.padding, window.size, window.stride
    padded = torch.nn.functional.pad(x, (pw, pw, ph, ph), value=float("nan"))
    seen = padded.unfold(2, kh, sh).unfold(3, kw, sw)
    n, c, h, w = seen.shape[:4]
    return seen.reshape(n, c, h * w, kh * kw).transpose(2, 3), (h, w)


def convolved(torch, x, w, window):
    """By products of matrices."""
    seen, size = unfolded(torch, x, window)
    columns = torch.nan_to_num(seen, 0.0).flatten(1, 2)
    return (w.flatten(1) @ columns).unflatten(2, size)


def rows(kernel):
    cases = [row.case for row in rows_of(kernel)]
    return [case for case in cases if case.outputs[0].dtype == "FLOAT"]


@pytest.mark.torch
@pytest.mark.parametrize("case", rows("Conv2D"), ids=lambda case: case.describe())
def test_convolution_equals_a_product_of_its_windows(torch, build, launch, case):
    x, w, bias, stride, padding = build(case).args
    window = SlidingWindow(tuple(w.shape[2:]), tuple(stride), tuple(padding))
    expected = convolved(torch, x.double(), w.double(), window) + bias.double()[:, None, None]
    actual = launch(case, build(case))[0].double()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kernel", "leaf"), [("Conv2DBackpropInput", 0), ("Conv2DBackpropFilter", 1)]
)
def test_gradients_equal_those_of_that_product(torch, build, launch, kernel, leaf):
    for case in rows(kernel):
        call = build(case)
        dy, x, w, window = call.args
        x.normal_() if leaf == 0 else w.normal_()  # on which the gradient does not depend
        leaves = [x.double().requires_grad_(), w.double().requires_grad_()]
        convolved(torch, *leaves, window).backward(dy.double())
        actual = launch(case, call)[0].double()
        torch.testing.assert_close(actual, leaves[leaf].grad, rtol=1e-4, atol=1e-3)


@pytest.mark.torch
def test_max_pooling_returns_the_maximum_and_routes_its_gradient(torch, build, launch):
    (case,) = rows("MaxPoolGradWithArgmaxV1")
    call = build(case)
    dy, x, _, window = call.args
    leaf = x.double().requires_grad_()
    seen, size = unfolded(torch, leaf, window)
    greatest = torch.nan_to_num(seen, -torch.inf).amax(2).unflatten(2, size)
    greatest.backward(dy.double())
    torch.testing.assert_close(launch(case, call)[0].double(), leaf.grad)
    forward = rows("MaxPoolWithArgmaxV1")[0]
    x, window = build(forward).args
    seen, size = unfolded(torch, x, window)
    expected = torch.nan_to_num(seen, -torch.inf).amax(2).unflatten(2, size)
    assert torch.equal(launch(forward, build(forward))[0], expected)


def place(format, index, blocks, window):
    """Return the position of an element of a plain tensor in blocks, by the definition of the
    format."""
    c0 = blocks[-1]
    if format == "FRACTAL_NZ":
        r, c = index
        return (c // c0, r // 16, r % 16, c % c0)
    n, c, h, w = index
    if format == "FRACTAL_Z":
        line = (c // c0 * window[0] + h) * window[1] + w
        return (line, n // 16, n % 16, c % c0)
    return (n, c // c0, h, w, c % c0)


@pytest.mark.torch
@pytest.mark.parametrize(
    "case", [row.case for row in rows_of("TransData")], ids=lambda case: case.describe()
)
def test_conversion_moves_each_element_to_its_position_in_the_format(torch, build, launch, case):
    call = build(case)
    into = case.inputs[0].format in ("NCHW", "ND")
    plain, blocked = (call.args[0], launch(case, call)[0])[:: 1 if into else -1]
    format = case.outputs[0].format if into else case.inputs[0].format
    numbers = plain.flatten().tolist()
    places = [
        place(format, index, blocked.shape, plain.shape[-2:])
        for index in product(*map(range, plain.shape))
    ]
    assert blocked[tuple(torch.tensor(places).T)].tolist() == numbers
    if into:  # and nothing else
        assert plain.count_nonzero() == blocked.count_nonzero()


# --- batch normalisation ---------------------------------------------------------------------

IMAGE, BLOCKED, EACH = "2,2,6,6,16", "1,2,1,1,16", "32"


def batch_norm(kernel, images, statistics, outputs, dtype="FLOAT"):
    """Return a case of `images` images, then these statistics; `outputs` are i and s."""
    slots = [(IMAGE, dtype, "NC1HWC0")] * images
    slots += [(s, "FLOAT", "NC1HWC0" if "," in s else "ND") for s in statistics]
    image, statistic = (IMAGE, dtype, "NC1HWC0"), (BLOCKED, "FLOAT", "NC1HWC0")
    given = [image if kind == "i" else statistic for kind in outputs]
    sides = [";".join(column) for side in (slots, given) for column in zip(*side, strict=True)]
    return case_in(kernel, *sides)


NORMS = (
    ("BNTrainingReduce", 1, 0, "ss"),
    ("BNTrainingUpdate", 1, 6, "issss"),
    ("BNTrainingUpdateGrad", 2, 2, "ss"),
    ("BNTrainingReduceGrad", 2, 5, "i"),
    ("BNInfer", 1, 4, "i"),
)


def over_channels(torch, numbers):
    return numbers.sum((0, 2, 3))


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["FLOAT", "FLOAT16"])
@pytest.mark.parametrize(("kernel", "images", "statistics", "outputs"), NORMS)
def test_batch_norm_equals_its_formulas(
    torch, build, launch, kernel, images, statistics, outputs, dtype
):
    case = batch_norm(kernel, images, [EACH] * statistics, outputs, dtype)
    call = build(case, wide=True)
    *given, scale, offset, mean, variance = (tensor.double().clone() for tensor in call.args)
    *dy, x = given
    gave = [tensor.double() for tensor in launch(case, call)]
    one = [1, -1, 1, 1]
    count = x.numel() // scale.numel()
    x_mean = over_channels(torch, x) / count
    x_variance = over_channels(torch, (x - x_mean.view(one)) ** 2) / count
    inverse = (x_variance + 1e-5).rsqrt()
    if kernel.endswith("Grad"):  # of the given statistics
        normal = (x - mean.view(one)) * variance.view(one)
        d_scale, d_offset = over_channels(torch, dy[0] * normal), over_channels(torch, dy[0])
        step = dy[0] - (d_offset.view(one) + normal * d_scale.view(one)) / count
        dx = step * (scale * variance).view(one)
        expected = [dx] if outputs == "i" else [d_scale, d_offset]
    elif kernel == "BNInfer":
        normal = (x - mean.view(one)) / (variance.view(one) + 1e-5).sqrt()
        expected = [normal * scale.view(one) + offset.view(one)]
    else:
        y = (x - x_mean.view(one)) * (scale * inverse).view(one) + offset.view(one)
        unbiased = x_variance * count / (count - 1)
        running = [0.9 * mean + 0.1 * x_mean, 0.9 * variance + 0.1 * unbiased]
        both = [x_mean, inverse]
        expected = both if outputs == "ss" else [y, *running, *both]
    for one_of, other in zip(gave, expected, strict=True):
        torch.testing.assert_close(one_of, other, rtol=1e-3, atol=1e-3)


@pytest.mark.fast
@pytest.mark.parametrize(("kernel", "images", "statistics", "outputs"), NORMS)
def test_statistics_are_in_blocks_or_by_channel(kernel, images, statistics, outputs):
    op = find_operator(kernel)
    for shape in (BLOCKED, EACH):
        case = batch_norm(kernel, images, [shape] * statistics, outputs)
        op.check(case, "npu")
        assert op.flops(case) >= 2 * 2 * 32 * 36
    wrong = [
        batch_norm(kernel, images, [EACH] * statistics, outputs, "DT_BF16"),
        batch_norm(kernel, images, [EACH] * (statistics + 1), outputs),
        batch_norm(kernel, images, [EACH] * statistics, outputs + "s"),
    ]
    wrong += [batch_norm(kernel, images, ["16"] * statistics, outputs)] if statistics else []
    for case in wrong:
        with pytest.raises(CaseRejected):
            op.check(case, "npu")


def test_blocks_of_atlas_910_have_sixteen_floats(torch, case_of, build, launch):
    values = ("2,20,7,7", "FLOAT", "NCHW", "2,2,7,7,16", "FLOAT", "NC1HWC0")
    case = case_from_cells("TransData", dict(zip(BASE_CELLS[2:], values, strict=True)))
    call = build(case)
    (out,) = launch(case, call)
    assert torch.equal(out[1, 1, :, :, 3], call.args[0][1, 19])
    assert not out[:, 1, :, :, 4:].any()
