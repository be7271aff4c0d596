"""A line of the fake CANN's log is parsed; its other tests are in tests/attack/long."""

import pytest

from collector.engine.calls import parse_call

pytestmark = pytest.mark.fast


def test_arguments_are_grouped_as_in_the_function():
    call = parse_call(
        'ACLNN aclnnX({bf16[2,3]:ND, i8[4]:ND}, 0, ints(1,2), "B, (C", f64=-0.5, '
        "f32[4,2]:ND/8,1+2<32>; 1e-06, 0.5)"
    )
    assert call.arguments == (
        "{bf16[2,3]:ND, i8[4]:ND}",
        "0",
        "ints(1,2)",
        '"B, (C"',
        "f64=-0.5",
        "f32[4,2]:ND/8,1+2<32>",
    )
    assert call.numbers == (1e-06, 0.5)
    assert [tensor.shape for tensor in call.tensors] == [(2, 3), (4,), (4, 2)]
