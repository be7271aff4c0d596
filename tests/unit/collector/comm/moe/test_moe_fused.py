"""The fused kernel is called as each release of vLLM-Ascend's extension takes it.

The schemas are those that the stock extensions gave (`python -m tests.npu.stock_extension`).
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from collector.comm.moe.moe_plan import MoeCase
from collector.ranks.experts import ExpertCall

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

RECORDED = Path(__file__).parents[4] / "npu" / "stock_calls"
RETURNED = re.compile(r"\(\$\d+! -> \)")  # as torch prints an argument that is written to


def recorded(release):
    """What a release's stock extension said of its operators, by name, and what it called."""
    lines = (RECORDED / f"{release}.txt").read_text().splitlines()
    schemas = [line.removeprefix("_C_ascend::") for line in lines if line.startswith("_C_ascend::")]
    plain = [RETURNED.sub("!", one) for one in schemas]
    return {one.partition("(")[0]: one for one in plain}, lines[len(schemas) :]


FUSED, DECODE = "dispatch_ffn_combine", "dispatch_gmm_combine_decode"
RELEASES = ("0.18.0", "0.23.0")
CALL = ExpertCall(8, 64, 32, 4, 2, 2)


@pytest.fixture(params=[(release, name) for release in RELEASES for name in (FUSED, DECODE)])
def operator(request):
    """An operator of the release's schema that only notes what it was given."""
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


def test_a_call_gives_what_the_schema_takes(operator):
    from collector.comm.moe.trials import arguments

    for call in (CALL, replace(CALL, is_int8=False)):
        given = arguments(operator, MoeCase(call, 3, 0.5), 1, "cpu", "the group")
        schema = operator.default._schema
        needed = {one.name for one in schema.arguments if not one.has_default_value()}
        assert needed <= set(given)
        operator(**given)


def test_the_tensors_are_the_seven_inputs_of_a_row():
    from collector.comm.moe.trials import arguments

    with torch.library._scoped_library("npu", "FRAGMENT") as casts:
        casts.define("npu_format_cast(Tensor x, int format) -> Tensor")
        casts.impl("npu_format_cast", lambda x, form: x.clone(), "CPU")
        with torch.library._scoped_library("_C_ascend", "FRAGMENT") as library:
            library.define(recorded("0.18.0")[0][FUSED])
            operator = torch.ops._C_ascend.dispatch_ffn_combine
            for call in (CALL, replace(CALL, is_int8=False)):
                given = arguments(operator, MoeCase(call, 3, 0.5), 0, "cpu", "the group")
                tensors = [
                    given[name][0] if name[:-1] in ("weight", "scale") else given[name]
                    for name in (
                        *("x", "weight1", "weight2", "expert_idx", "scale1", "scale2", "probs"),
                        *("out", "expert_token_nums"),
                    )
                ]
                slots = (*call.inputs, *call.outputs)
                assert [tuple(one.shape) for one in tensors] == [slot.shape for slot in slots]
                names = [str(one.dtype).removeprefix("torch.") for one in tensors]
                assert names == [slot.known_dtype.torch_name for slot in slots]
                scales = given["scale1"][0].to(torch.int32).view(torch.float32)
                assert (scales > 0).all()


@pytest.mark.parametrize("release", RELEASES)
def test_the_stock_extension_called_the_kernels_with_what_it_was_given(release):
    """Two ranks on a runtime that computes nothing; weights in FRACTAL_NZ, INT8 and BF16."""
    _, calls = recorded(release)
    kernels = [call.removeprefix("ACLNN ").partition("(")[0] for call in calls]
    assert kernels == sorted(
        2
        * [
            "aclnnDispatchFFNCombine",
            "aclnnDispatchFFNCombineBF16",
            "aclnnDispatchGmmCombineDecode",
        ]
    )
    assert all("FRACTAL_NZ" in call and call.count("bf16[8,64]:ND") == 2 for call in calls)
    fused, decode = calls[0], calls[-2:]
    assert "{i64[128]:ND}, {i64[128]:ND}, f32[8,2]:ND" in fused
    assert ("; 1e+06)" in fused) == (release == "0.23.0")  # its limit of SwiGLU
    assert [f'"fake_hccl", 2, {rank}, 4' in call for rank, call in enumerate(decode)] == [True] * 2
