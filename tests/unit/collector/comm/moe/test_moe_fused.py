"""The fused kernel is called with the arguments of each release of vLLM-Ascend's extension.

The schemas are those of the stock extensions (`python -m tests.npu.stock_extension`).
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from collector.codec.errors import HostFault
from collector.comm.moe.moe_plan import MoeCase
from collector.ranks.experts import ExpertCall

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

RECORDED = Path(__file__).parents[4] / "npu" / "stock_calls"
RETURNED = re.compile(r"\(\$\d+! -> \)")  # as torch writes an argument that is modified


def recorded(release):
    """The operators of a release's stock extension, by name, and its calls."""
    lines = (RECORDED / f"{release}.txt").read_text().splitlines()
    schemas = [line.removeprefix("_C_ascend::") for line in lines if line.startswith("_C_ascend::")]
    plain = [RETURNED.sub("!", one) for one in schemas]
    return {one.partition("(")[0]: one for one in plain}, lines[len(schemas) :]


FUSED, DECODE = "dispatch_ffn_combine", "dispatch_gmm_combine_decode"
RELEASES = ("0.18.0", "0.23.0")
CALL = ExpertCall(8, 64, 32, 4, 2, 2)


@pytest.fixture(params=[(release, name) for release in RELEASES for name in (FUSED, DECODE)])
def operator(request):
    """An operator with the release's schema that only records its arguments."""
    release, name = request.param
    schema = recorded(release)[0][name]
    library = torch.library.Library("_C_ascend", "FRAGMENT")
    casts = torch.library.Library("npu", "FRAGMENT")
    casts.define("npu_format_cast(Tensor x, int format) -> Tensor")
    casts.impl("npu_format_cast", lambda x, form: x.clone(), "CPU")
    library.define(schema)
    library.impl(name, lambda *given: (torch.empty(0), torch.empty(0)), "CPU")
    yield getattr(torch.ops._C_ascend, name)
    library._destroy()
    casts._destroy()


def test_arguments_match_the_schema_of_the_operator(operator):
    from collector.comm.moe.fused_kernel import arguments

    takes = {one.name for one in operator.default._schema.arguments}
    for call in (CALL, replace(CALL, weight_bits=16), replace(CALL, weight_bits=4)):
        if call.weight_bits == 4 and "bias1" not in takes:
            with pytest.raises(HostFault):
                arguments(operator, MoeCase(call, 3, 0.5), 1, "cpu", "the group")
            continue
        given = arguments(operator, MoeCase(call, 3, 0.5), 1, "cpu", "the group")
        schema = operator.default._schema
        needed = {one.name for one in schema.arguments if not one.has_default_value()}
        assert needed <= set(given)
        operator(**given)


def test_the_tensors_are_the_inputs_of_a_row():
    from collector.comm.moe.fused_kernel import arguments

    with torch.library._scoped_library("npu", "FRAGMENT") as casts:
        casts.define("npu_format_cast(Tensor x, int format) -> Tensor")
        casts.impl("npu_format_cast", lambda x, form: x.clone(), "CPU")
        with torch.library._scoped_library("_C_ascend", "FRAGMENT") as library:
            library.define(recorded("0.23.0")[0][FUSED])
            operator = torch.ops._C_ascend.dispatch_ffn_combine
            for bits in (8, 16, 4):
                call = replace(CALL, weight_bits=bits)
                given = arguments(operator, MoeCase(call, 3, 0.5), 0, "cpu", "the group")
                biases = ("bias1", "bias2") if bits == 4 else ()
                tensors = [
                    given[name][0] if isinstance(given[name], list) else given[name]
                    for name in (
                        *("x", "weight1", "weight2", "expert_idx", "scale1", "scale2", *biases),
                        *("probs", "out", "expert_token_nums"),
                    )
                ]
                slots = (*call.inputs, *call.outputs)
                plain = {"INT4": "int32"}  # eight numbers in each
                sizes = [
                    (*slot.shape[:-1], slot.shape[-1] // 8) if slot.dtype == "INT4" else slot.shape
                    for slot in slots
                ]
                assert [tuple(one.shape) for one in tensors] == sizes
                names = [str(one.dtype).removeprefix("torch.") for one in tensors]
                assert names == [plain.get(s.dtype, s.known_dtype.torch_name) for s in slots]
                scales = given["scale1"][0].to(torch.int32).view(torch.float32)
                assert (scales > 0).all()


def test_four_bit_weights_are_packed_eight_to_a_word_and_corrected():
    from collector.comm.moe import fused_kernel

    weight = torch.randint(-8, 8, (2, 3, 16), dtype=torch.int8)
    packed = fused_kernel._pairs(weight).view(torch.int32)
    numbers = torch.stack([packed >> 4 * place & 15 for place in range(8)], -1).flatten(-2)
    assert torch.equal(numbers - 16 * (numbers > 7), weight.int())
    scale = torch.rand(2, 16)
    expected = (8 * weight * scale.unsqueeze(1)).sum(1)
    torch.testing.assert_close(fused_kernel._correction(weight, scale), expected)


@pytest.mark.parametrize("release", RELEASES)
def test_stock_extension_calls_the_kernels_with_the_recorded_arguments(release):
    """Two ranks on a runtime that computes nothing; weights in FRACTAL_NZ, INT8, BF16 and INT4."""
    _, calls = recorded(release)
    kernels = [call.removeprefix("ACLNN ").partition("(")[0] for call in calls]
    fused = ["", "BF16", *(["W4A8"] if release == "0.23.0" else [])]
    names = [*(f"aclnnDispatchFFNCombine{each}" for each in fused), "aclnnDispatchGmmCombineDecode"]
    assert kernels == sorted(2 * names)
    assert all("FRACTAL_NZ" in call and call.count("bf16[8,64]:ND") == 2 for call in calls)
    fused, decode = calls[0], calls[-2:]
    assert "{i64[128]:ND}, {i64[128]:ND}, f32[8,2]:ND" in fused
    assert ("; 1e+06)" in fused) == (release == "0.23.0")  # its limit of SwiGLU
    assert [f'"fake_hccl", 2, {rank}, 4' in call for rank, call in enumerate(decode)] == [True] * 2
