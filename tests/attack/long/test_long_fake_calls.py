"""The log lines that the fake CANN writes, and the simulated durations that follow from them."""

import pytest

from collector.engine.calls import parse_call, parse_line, parse_tensor, read_calls
from collector.engine.kernels import kernel_of
from tests.npu.fakecann.truth import truth_us

pytestmark = pytest.mark.fast


def test_log_line_has_time_device_and_stream():
    call = parse_line("1795265772292658945 3 2 ACLNN aclnnNeg(f32[4]:ND, f32[4]:ND)")
    assert (call.ns, call.device, call.stream) == (1795265772292658945, 3, 2)
    assert (call.kind, call.name) == ("ACLNN", "aclnnNeg")
    assert call.text == "ACLNN aclnnNeg(f32[4]:ND, f32[4]:ND)"


def test_call_may_have_no_arguments_or_numbers_alone():
    assert parse_call("ATB Nothing()").arguments == ()
    assert parse_call("ACLNN aclnnX(; 0.25)").numbers == (0.25,)


def test_dense_tensor_is_described_by_its_shape():
    tensor = parse_tensor("bf16[6,1,8]:NCL")
    assert (tensor.dtype, tensor.shape, tensor.format) == ("DT_BF16", (6, 1, 8), "NCL")
    assert (tensor.strides, tensor.offset, tensor.storage) == ((8, 8, 1), 0, (48,))
    assert tensor.is_dense


def test_view_has_strides_offset_and_storage():
    tensor = parse_tensor("f32[4,2]:ND/8,1+2<32>")
    assert (tensor.strides, tensor.offset, tensor.storage) == ((8, 1), 2, (32,))
    assert not tensor.is_dense


def test_private_format_has_its_blocks_and_a_scalar_no_dimensions():
    assert parse_tensor("bf16[32,64]:FRACTAL_NZ<4,2,16,16>").storage == (4, 2, 16, 16)
    assert parse_tensor("i64[]:ND").shape == ()
    assert parse_tensor("f32[0]:ND").storage == (0,)


@pytest.mark.parametrize("text", ["0", "ints(1,2)", "f32=1.5", '"BNSD"', "9223372036854775807"])
def test_malformed_tensor_is_not_parsed(text):
    assert parse_tensor(text) is None


def test_outputs_of_a_single_operator_are_known():
    call = parse_call("ACLOP Identity(bf16[32,64]:ND -> bf16[32,64]:FRACTAL_NZ<4,2,16,16>)")
    assert [tensor.format for tensor in call.tensors] == ["ND", "FRACTAL_NZ"]
    assert [tensor.format for tensor in call.outputs] == ["FRACTAL_NZ"]


def test_truncated_last_line_is_ignored(tmp_path):
    path = tmp_path / "log"
    path.write_text("1 0 1 ATB A()\n2 0 1 ATB B()\n3 0 1 ATB C(f32[")
    assert [call.name for call in read_calls(path)] == ["A", "B"]
    assert [call.name for call in read_calls(path, len("1 0 1 ATB A()\n"))] == ["B"]
    assert read_calls(tmp_path / "none") == []


@pytest.mark.parametrize("line", ["", "CUSTOM x(T[2]bf16/fmt2, )", "1 0 1 ACLNN"])
def test_malformed_line_is_refused(line):
    with pytest.raises(ValueError, match="log"):
        parse_line(line)


def test_simulated_durations_differ_for_nearly_every_call_within_bounds():
    calls = [parse_call(f"ACLNN aclnnNeg(f32[{n}]:ND, f32[{n}]:ND)") for n in range(1000)]
    truths = {truth_us(call, "Neg") for call in calls}
    assert len(truths) > 990
    assert min(truths) >= 1 and max(truths) <= 200
    assert truth_us(calls[0], "Neg") == truth_us(calls[0], "Neg") != truth_us(calls[0], "Abs")


def test_call_without_a_table_entry_has_its_own_name():
    assert kernel_of(parse_call("ACLNN aclnnNoSuchThing()")) == "NoSuchThing"
    assert kernel_of(parse_call("ACLNN aclnnAbs(f32[4]:ND, f32[4]:ND)")) == "Abs"
