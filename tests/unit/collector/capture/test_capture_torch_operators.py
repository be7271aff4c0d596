"""An operator that torch dispatched is called again with the arguments that its row has."""

import json

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")

from collector.capture.dispatched import DispatchedCalls, kernel_details  # noqa: E402
from collector.codec.errors import CaseRejected  # noqa: E402
from collector.model.case import case_from_cells  # noqa: E402
from collector.model.vocabulary import CALL_VALUES  # noqa: E402
from collector.ops.refusals import refusal  # noqa: E402
from collector.ops.registry import find_operator  # noqa: E402
from collector.replay.cases import check_outputs, find_invalid_values  # noqa: E402
from collector.replay.tensors import CaseTensors  # noqa: E402

pytestmark = pytest.mark.fast


def dispatched(run):
    """Return the cases of the operators that a function calls."""
    with DispatchedCalls() as calls:
        calls.step = 1
        run()
    assert kernel_details(calls.launches)
    return [case_of(one) for one in calls.launches]


def case_of(launch):
    cells = dict(launch.cells)
    values = json.loads(cells.pop(CALL_VALUES, "{}"))
    return case_from_cells(launch.kernel_type, {**cells, **values})


def built(case, emulated=frozenset()):
    make = CaseTensors("cpu", 0, emulated)
    return find_operator(case.kernel_type).build(case, make), make


def replayed(case):
    assert refusal(case, find_operator, "cpu") is None
    (call, make), op = built(case), find_operator(case.kernel_type)
    with torch.no_grad():
        outputs = op.run_reference(torch, *call.args, **call.kwargs)
    check_outputs(outputs, case, make.dtype)
    assert not find_invalid_values(outputs, op.infinite, op.written(case))
    return call.args


def tensors(*shape):
    return torch.rand(*shape), torch.rand(*shape)


def trained(model, *inputs):
    model(*inputs).square().mean().backward()


def adamw(**options):
    parameters = [torch.nn.Parameter(one) for one in (*tensors(4, 8), *tensors(3))]
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, **options)
    for one in parameters:
        one.grad = torch.rand_like(one)
    optimizer.step()


LAYERS = {
    "normalized": lambda: trained(torch.nn.LayerNorm(8), torch.rand(4, 8)),
    "convolution": lambda: trained(torch.nn.Conv2d(3, 4, 3), torch.rand(2, 3, 8, 8)),
    "channels last": lambda: trained(
        torch.nn.Conv2d(3, 4, 3), torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last)
    ),
    "batch norm": lambda: trained(torch.nn.BatchNorm2d(3), torch.rand(2, 3, 8, 8)),
    "group norm": lambda: trained(torch.nn.GroupNorm(2, 4), torch.rand(2, 4, 8)),
    "lstm": lambda: torch.nn.LSTM(4, 8, 2)(torch.rand(5, 3, 4))[0].mean().backward(),
    "gru": lambda: torch.nn.GRU(4, 8)(torch.rand(5, 3, 4))[0].mean().backward(),
    "attention": lambda: (
        torch.nn.functional.scaled_dot_product_attention(
            *torch.rand(3, 2, 2, 8, 4, requires_grad=True).unbind(), is_causal=True
        )
        .mean()
        .backward()
    ),
    "embedding": lambda: trained(torch.nn.Embedding(20, 4), torch.randint(20, (3, 5))),
    "loss": lambda: torch.nn.functional.cross_entropy(
        torch.rand(6, 9, requires_grad=True), torch.randint(9, (6,)), label_smoothing=0.1
    ).backward(),
    "pooling": lambda: trained(torch.nn.MaxPool2d(2), torch.rand(2, 3, 8, 8, requires_grad=True)),
    "resized": lambda: torch.nn.functional.interpolate(
        torch.rand(1, 3, 8, 8), scale_factor=2.0, mode="bicubic", antialias=True
    ),
    "dropout": lambda: torch.nn.functional.dropout(torch.rand(8, 8), 0.3),
    "mask": lambda: torch.rand(20, 3)[torch.arange(20) % 3 == 0],
    "selected": lambda: torch.rand(20).masked_select(torch.arange(20) % 3 == 0),
    "written mask": lambda: torch.rand(20, 3).index_put_((torch.arange(20) < 4,), torch.ones(3)),
    "some indices": lambda: torch.rand(4, 5, 6)[:, torch.tensor([4, 0, 1])],
    "scattered": lambda: torch.zeros(9, 4).index_add_(
        0, torch.randint(9, (20,)), torch.rand(20, 4)
    ),
    "gathered": lambda: torch.rand(9, 4).gather(1, torch.randint(4, (9, 2))),
    "made": lambda: (torch.arange(3, 40, 2), torch.randint(7, (4,)), torch.empty(3).normal_()),
    "roots": lambda: (torch.rand(8).log(), torch._foreach_sqrt(list(tensors(3)))),
    "converted": lambda: torch.rand(8).to(torch.float64).view(2, 4).t().contiguous(),
    "scalar": lambda: torch.rand(()).mul_(0.99).item(),
    "einsum": lambda: torch.einsum("bij,bkj->bik", *tensors(2, 3, 4)),
    "sorted": lambda: torch.rand(8, 20).topk(3),
    "foreach": lambda: adamw(foreach=True),
    "fused": lambda: adamw(fused=True),
    "single": adamw,
}


@pytest.mark.parametrize("name", LAYERS)
def test_dispatched_operators_are_called_again_with_their_arguments(name):
    cases = dispatched(LAYERS[name])
    assert cases
    for case in cases:
        replayed(case)


def test_strided_tensor_has_its_strides_again():
    *_, case = dispatched(lambda: torch.addmv(torch.rand(3), torch.rand(4, 3).t(), torch.rand(4)))
    (_, matrix, _) = replayed(case)
    assert matrix.stride() == (1, 3)


def test_indices_are_drawn_from_their_recorded_range():
    table, index = torch.rand(50, 4), torch.randint(31, (3, 4))
    (case,) = dispatched(lambda: table.gather(0, index))
    _, _, drawn = replayed(case)
    assert index.min() <= drawn.min() and drawn.max() <= index.max()
    (case,) = dispatched(lambda: torch.ops.aten.gather(table[:, 0], 0, torch.arange(9)).size())[1:]
    _, _, drawn = replayed(case)
    assert bool((drawn[1:] >= drawn[:-1]).all())
    marked = torch.tensor([-100, 2, -100, 1])  # not counted by a loss
    (case,) = dispatched(lambda: torch.ops.aten.nll_loss_forward(table[:4], marked, None, 1, -100))
    assert replayed(case)[1].min() >= 0


def test_rates_and_random_indices_of_two_steps_are_one_case():
    cases = []
    x, table = torch.zeros(8), torch.rand(40, 4)
    for rate, most in ((0.9, 20), (0.99, 40)):
        index = torch.randint(most, (6, 4))
        cases += dispatched(lambda r=rate: x.mul_(r))
        cases += dispatched(lambda i=index: table.gather(0, i))
    assert len({one.case_id for one in cases}) == len(set(cases)) == 2


def test_tensors_that_are_updated_begin_with_zeros():
    *_, case = dispatched(lambda: torch.rand(8).lerp_(torch.rand(8), 0.1))
    call, _ = built(case)
    assert not call.args[0].any() and call.args[1].all()


def test_sixteen_bit_numbers_are_computed_as_the_device_does():
    *_, case = dispatched(lambda: torch.rand(8, dtype=torch.bfloat16).erf())
    (one,) = built(case)[0].args
    assert one.dtype is torch.bfloat16
    (one,) = built(case, frozenset({"bfloat16"}))[0].args
    assert one.dtype is torch.float32


def test_sparse_tensors_are_refused_with_the_reason():
    sparse = torch.eye(4).to_sparse()
    cases = dispatched(lambda: sparse @ torch.rand(4, 2))
    found = [refusal(one, find_operator, "cpu") for one in cases]
    assert any(one is not None and "sparse" in one.reason for one in found)


def test_operators_of_tensor_classes_are_noted_once_with_their_parts():
    pair = pytest.importorskip("torch.testing._internal.two_tensor").TwoTensor(*tensors(4))
    assert [one.kernel_type for one in dispatched(lambda: pair.erf())] == ["aten.erf"] * 2


def test_operator_of_another_torch_is_rejected():
    cells = {"Input Shapes": "8", "Input Data Types": "FLOAT", "Input Formats": "ND"}
    with pytest.raises(CaseRejected, match="aten.not_in_torch"):
        built(case_from_cells("aten.not_in_torch", cells))


def test_case_without_recorded_arguments_takes_its_tensors_in_order():
    cells = {"Input Shapes": "8;8", "Input Data Types": "FLOAT;FLOAT", "Input Formats": "ND;ND"}
    call, _ = built(case_from_cells("aten.atan2", cells))
    assert [one.shape for one in call.args] == [(8,), (8,)]
    with pytest.raises(CaseRejected, match="dim"):
        built(case_from_cells("aten.glu_backward", cells))
