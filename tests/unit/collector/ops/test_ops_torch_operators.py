"""Operators of torch are cases where no kernel is declared: what torch is not needed for."""

import json
from math import inf

import pytest

from collector.model.case import case_from_cells
from collector.model.measurement import Outcome
from collector.model.vocabulary import TORCH_ARGUMENTS
from collector.ops.refusals import refusal
from collector.ops.registry import find_operator
from collector.ops.torch_operators import recorded_number

pytestmark = pytest.mark.fast


def row(arguments, kernel_type="aten.gelu_backward", shapes="8,4;8,4"):
    count = shapes.count(";") + 1
    cells = {
        "Input Shapes": shapes,
        "Input Data Types": ";".join(["FLOAT"] * count),
        "Input Formats": ";".join(["ND"] * count),
        "Output Shapes": "8,4",
        "Output Data Types": "FLOAT",
        "Output Formats": "ND",
        TORCH_ARGUMENTS: arguments,
    }
    return case_from_cells(kernel_type, cells)


def test_operator_of_torch_is_measured_on_cpus_and_gpus_alone():
    case = row('{"grad_output":{},"self":{}}')
    assert find_operator(case.kernel_type).call == "torch.ops.aten.gelu_backward.default"
    assert find_operator("aten.add.Tensor").call == "torch.ops.aten.add.Tensor"
    assert find_operator("fsdp.chunk_cat").call == "torch.ops.fsdp.chunk_cat.default"
    assert (
        refusal(case, find_operator, "cpu") is None and refusal(case, find_operator, "cuda") is None
    )
    assert refusal(case, find_operator, "npu").outcome is Outcome.REJECTED


@pytest.mark.parametrize("kernel_type", ["mine.gelu", "aten", "aten.", "Gelu2", "0.5"])
def test_name_of_no_operator_of_torch_has_no_declaration(kernel_type):
    assert find_operator(kernel_type) is None


@pytest.mark.parametrize("arguments", ["{", "[]", '{"self":{}}', '{"self":[{},{}],"other":{}}'])
def test_arguments_that_do_not_fit_the_tensors_are_rejected(arguments):
    assert refusal(row(arguments), find_operator, "cpu").outcome is Outcome.REJECTED


def test_argument_that_cannot_be_made_again_is_refused_with_its_reason():
    recorded = {"grad_output": {}, "self": {}, "mask": [{"refused": "a sparse tensor: no pattern"}]}
    found = refusal(row(json.dumps(recorded)), find_operator, "cpu")
    assert (found.outcome, found.reason) == (Outcome.UNSUPPORTED, "a sparse tensor: no pattern")


def test_arguments_are_part_of_the_identity():
    ids = {row(f'{{"grad_output":{{}},"self":{{}},"n":{n}}}').case_id for n in (1, 2, 2)}
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("value", "stands"),
    [(2.0, 2.0), (-0.5, -0.5), (3.7e-4, 0.1), (-0.9, -0.1), (8.31, 1.1), (-inf, -inf), (0.0, 0.0)],
)
def test_rates_of_different_steps_are_recorded_alike(value, stands):
    assert recorded_number(value) == stands
