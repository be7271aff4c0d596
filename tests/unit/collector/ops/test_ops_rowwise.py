"""Normalisation, gates and rotary positions against torch's own functions and autograd."""

import pytest

pytestmark = pytest.mark.torch


def gradients(torch, function, inputs, upstream):
    """What autograd says of a function of several tensors."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    return torch.autograd.grad(function(*leaves), leaves, upstream)


@pytest.mark.parametrize(
    ("x", "gamma", "rstd"), [("6,1,8", "8", "6,1,1"), ("6,3,2,4", "2,4", "6,3,1,1")]
)
def test_rms_norm(torch, case_of, build, launch, x, gamma, rstd):
    case = case_of("RmsNorm", f"{x};{gamma}", "FLOAT;FLOAT", f"{x};{rstd}", "FLOAT;FLOAT")
    tensor, weight = (call := build(case)).args
    y, inverse = launch(case, call)
    expected = torch.nn.functional.rms_norm(tensor, weight.shape, weight, 1e-6)
    torch.testing.assert_close(y, expected)
    dims = tuple(range(-weight.dim(), 0))
    norm = torch.linalg.vector_norm(tensor, dim=dims, keepdim=True)
    torch.testing.assert_close(inverse, weight.numel() ** 0.5 / norm, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "gamma", "rstd"), [("6,1,8", "8", "6,1,1"), ("6,3,2,4", "2,4", "6,3,1,1")]
)
def test_rms_norm_grad(torch, case_of, build, launch, x, gamma, rstd):
    cells = (f"{x};{x};{rstd};{gamma}", "FLOAT;FLOAT;FLOAT;FLOAT", f"{x};{gamma}", "FLOAT;FLOAT")
    case = case_of("RmsNormGrad", *cells)
    call = build(case)
    dy, tensor, inverse, weight = call.args
    dims = tuple(range(-weight.dim(), 0))
    inverse.copy_(tensor.square().mean(dims, keepdim=True).add(1e-6).rsqrt())

    def forward(x, gamma):
        return torch.nn.functional.rms_norm(x, gamma.shape, gamma, 1e-6)

    expected = gradients(torch, forward, (tensor, weight), dy)
    for came, wanted in zip(launch(case, call), expected, strict=True):
        torch.testing.assert_close(came, wanted)


def swiglu(torch, x):
    half = x.shape[-1] // 2
    return torch.sigmoid(x[..., :half]) * x[..., :half] * x[..., half:]


def test_swi_glu(torch, case_of, build, launch):
    case = case_of("SwiGlu", "6,8", "FLOAT", "6,4", "FLOAT")
    call = build(case)
    torch.testing.assert_close(launch(case, call)[0], swiglu(torch, call.args[0]))


def test_swi_glu_grad(torch, case_of, build, launch):
    case = case_of("SwiGluGrad", "6,4;6,8", "FLOAT;FLOAT", "6,8", "FLOAT")
    dy, x = (call := build(case)).args
    (expected,) = gradients(torch, lambda x: swiglu(torch, x), (x,), dy)
    torch.testing.assert_close(launch(case, call)[0], expected)


def rotary(torch, x, cos, sin):
    """Each pair (i, i + half) turned in its plane."""
    half = x.shape[-1] // 2
    first = x[..., :half] * cos[..., :half] - x[..., half:] * sin[..., :half]
    second = x[..., half:] * cos[..., half:] + x[..., :half] * sin[..., half:]
    return torch.cat((first, second), -1)


def test_rotary_position_embedding(torch, case_of, build, launch):
    shapes = "6,1,4,16;6,1,1,16;6,1,1,16"
    case = case_of("RotaryPositionEmbedding", shapes, "FLOAT;FLOAT;FLOAT", "6,1,4,16", "FLOAT")
    call = build(case)
    torch.testing.assert_close(launch(case, call)[0], rotary(torch, *call.args))


def test_rotary_position_embedding_grad(torch, case_of, build, launch):
    positions = "6,1,1,16;6,1,1,16"
    case = case_of(
        "RotaryPositionEmbeddingGrad",
        f"6,1,4,16;{positions};6,1,4,16",
        "FLOAT;FLOAT;FLOAT;FLOAT",
        f"6,1,4,16;{positions}",
        "FLOAT;FLOAT;FLOAT",
    )
    dy, cos, sin, x = (call := build(case)).args
    expected = gradients(torch, lambda *t: rotary(torch, *t), (x, cos, sin), dy)
    for came, wanted in zip(launch(case, call), expected, strict=True):
        torch.testing.assert_close(came, wanted)


def test_rotary_position_embedding_grad_without_x(torch, case_of, build, launch):
    case = case_of(
        "RotaryPositionEmbeddingGrad",
        "6,1,4,16;6,1,1,16;6,1,1,16;",
        "FLOAT;FLOAT;FLOAT;DT_UNDEFINED",
        "6,1,4,16;;",
        "FLOAT;FLOAT;FLOAT",
    )
    dy, cos, sin = (call := build(case)).args
    x = torch.zeros_like(dy)
    (expected,) = gradients(torch, lambda x: rotary(torch, x, cos, sin), (x,), dy)
    dx, dcos, dsin = launch(case, call)
    torch.testing.assert_close(dx, expected)
    assert dcos is dsin is None
