"""The fused kernel is called as each release of vLLM-Ascend's extension takes it.

The schemas are those that the wheels of these releases hold.
"""

from dataclasses import replace

import pytest

from collector.comm.moe.moe_plan import MoeCase
from collector.expert_call import ExpertCall

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

OUT = "Tensor! out, Tensor! expert_token_nums"
RELEASES = {
    "0.18.0": "dispatch_ffn_combine(Tensor x, Tensor[] weight1, Tensor[] weight2, "
    "Tensor expert_idx, Tensor[] scale1, Tensor[] scale2, Tensor probs, str group, "
    f"int max_output_size, {OUT}) -> (Tensor out, Tensor expert_token_nums)",
    "0.23.0": "dispatch_ffn_combine(Tensor x, Tensor[] weight1, Tensor[] weight2, "
    "Tensor expert_idx, Tensor[] scale1, Tensor[] scale2, Tensor[] bias1, Tensor[] bias2, "
    f"Tensor probs, str group, int max_output_size, {OUT}, Tensor? x_active_mask=None, "
    "float swiglu_limit=1000000.0) -> (Tensor out, Tensor expert_token_nums)",
    "decode": "dispatch_gmm_combine_decode(Tensor x, Tensor expert_ids, "
    "Tensor[] gmm1_permuted_weight, Tensor[] gmm1_permuted_weight_scale, Tensor[] gmm2_weight, "
    "Tensor[] gmm2_weight_scale, Tensor expert_scales, Tensor? expert_smooth_scales=None, "
    "Tensor? x_active_mask=None, str group_ep='', int ep_rank_size=0, int ep_rank_id=0, "
    "int moe_expert_num=0, int shared_expert_num=1, int shared_expert_rank_num=0, "
    "int quant_mode=0, int global_bs=0) -> (Tensor output, Tensor expert_token_nums)",
}
CALL = ExpertCall(8, 64, 32, 4, 2, 2)


@pytest.fixture(params=RELEASES)
def operator(request):
    """An operator of the release's schema that only notes what it was given."""
    schema = RELEASES[request.param]
    name = schema.partition("(")[0]
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
    from collector.comm.moe.fused import arguments

    for call in (CALL, replace(CALL, is_int8=False)):
        given = arguments(operator, MoeCase(call, 3, 0.5), 1, "cpu", "the group")
        schema = operator.default._schema
        needed = {one.name for one in schema.arguments if not one.has_default_value()}
        assert needed <= set(given)
        operator(**given)


def test_the_tensors_are_the_seven_inputs_of_a_row():
    from collector.comm.moe.fused import arguments

    with torch.library._scoped_library("npu", "FRAGMENT") as casts:
        casts.define("npu_format_cast(Tensor x, int format) -> Tensor")
        casts.impl("npu_format_cast", lambda x, form: x.clone(), "CPU")
        with torch.library._scoped_library("_C_ascend", "FRAGMENT") as library:
            library.define(RELEASES["0.18.0"])
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
