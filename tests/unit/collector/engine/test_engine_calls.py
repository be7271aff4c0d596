"""The calls of a log as the passes of a recording."""

import gzip
import json
from dataclasses import replace

import pytest

from collector.codec.errors import BadInput, NewerFormat, OpmeterError
from collector.engine.calls import parse_call
from collector.engine.cells import cells_of
from collector.engine.engine_process import EngineSettings, check_settings, read_environment
from collector.engine.model_folder import find_model
from collector.engine.recorded_calls import (
    LoggedCall,
    PassTokens,
    derived_again,
    read_step,
    recorded_pass,
)
from collector.ranks.distribution import distribute_call
from collector.workloads.call_order import CallKind, CallOrder, PassCall
from collector.workloads.recorded_step import (
    RecordedPass,
    Recording,
    read_recording,
    write_recording,
)

pytestmark = pytest.mark.fast

MATMUL = "ACLNN aclnnMatmul(bf16[4,8]:ND, bf16[8,16]:ND/1,8, bf16[4,16]:ND, 0)"
NORM = "ACLNN aclnnRmsNorm(bf16[4,8]:ND, bf16[8]:ND, bf16[4,8]:ND, f32[4,1]:ND; 1e-06)"
FUSED = "CUSTOM triton.fused_kernel(bf16[4,8]:ND, 8)"
GATHER = "HCCL HcclAllGather(bf16[32]:ND, ranks=16)"
DECODE = PassTokens("decode", 4, 1, 4096)
ROTARY = (
    "CUSTOM triton._triton_rope(bf16[4,2,128]:ND, 256, bf16[4,1,128]:ND, 128, 0, 0, 0, 0, "
    "bf16[64,128]:ND, 128, i64[4]:ND, 4)"
)


def log_of(*steps):
    """Return a log with a mark before each step. Each call is 100 ns after the one before."""
    lines = []
    for number, calls in enumerate(steps):
        for call in (f'CUSTOM MARK("step", {number})', *calls):
            lines.append(f"{100 * len(lines)} 0 5 {call}")
    lines.append(f'{100 * len(lines)} 0 0 CUSTOM MARK("end", {len(steps)})')
    return lines


def test_step_has_the_calls_up_to_the_next_mark():
    draft = ('CUSTOM MARK("draft", 1)', NORM, 'CUSTOM MARK("draft", 0)')
    log = log_of([MATMUL], [MATMUL, *draft, NORM])
    assert read_step(log, 1) == [LoggedCall(text, 5, 100) for text in (MATMUL, *draft, NORM)]
    with pytest.raises(OpmeterError):
        read_step(log, 2)


def test_addresses_of_freed_memory_are_not_part_of_a_call():
    call = "ACLNN aclnnMoeTokenUnpermute(bf16[8,2]:ND, 0, ints({}), bf16[4,2]:ND)"
    log = log_of([call.format(139930037522368), call.format(8)])
    assert {one.text for one in read_step(log, 0)} == {call.format("?")}


EMPTY = "ACLNN aclnnInplaceFillScalar(i32[0]:ND, i64=0)"
MIXED = "ACLNN aclnnMul(bool[4]:ND, i64[4]:ND, i64[4]:ND)"  # two kernels


def pass_of_layers() -> RecordedPass:
    """A pass with a copy before 64 layers, of which each sends a message on another stream."""
    calls = [LoggedCall("HOST copy(1, 64, 0)", 1, 500), LoggedCall(EMPTY, 1, 10)]
    for layer in range(64):
        event = 10 + 2 * layer
        calls += [
            *(LoggedCall(MATMUL, 1, 100), LoggedCall(MIXED, 1, 30)),
            *(LoggedCall(f"HOST record({event})", 1, 5), LoggedCall(f"HOST wait({event})", 7, 5)),
            *(LoggedCall(GATHER, 7, 20), LoggedCall(f"HOST record({event + 1})", 7, 5)),
            LoggedCall(f"HOST wait({event + 1})", 1, 5),
        ]
    return recorded_pass(DECODE, [*calls, LoggedCall("HOST synchronize_event(3)", 0, 7)])


def test_pass_has_every_call_in_order_with_its_stream_and_its_time():
    found = pass_of_layers()
    first, empty, *layers, last = found.order.calls
    assert (first.kind, found.copies[first.subject].direction) == ("copy", "host to device")
    assert (empty.kind, found.calls[empty.subject]) == ("call", EMPTY)  # it launches no kernel
    assert (last.kind, last.subject) == ("synchronize_event", 0)  # of an earlier pass
    kinds = ["launch"] * 3 + ["record", "wait", "message", "record", "wait"]
    assert [one.kind for one in layers] == kinds * 64
    assert [one.stream for one in layers[:8]] == [0, 0, 0, 0, 1, 1, 1, 0]
    assert [one.host_ns for one in layers[:8]] == [100, 30, 0, 5, 5, 20, 5, 5]
    kernels = [found.launches[one.subject].kernel for one in layers[:3]]
    assert kernels == ["MatMulV2", "Cast", "Mul"]
    assert len({one.what for one in layers}) == 8  # every layer has the same events
    assert {times for _, times in (*found.launched(), *found.sent())} == {64}
    assert set(found.places()[CallKind.LAUNCH, 0]) == {"block 1, 64 times"}


def test_pass_is_made_again_of_its_own_calls():
    found = pass_of_layers()
    assert derived_again(found) == found
    other = replace(found, launches=tuple(replace(x, kernel="Other") for x in found.launches))
    assert derived_again(other) == found


def test_graph_runs_its_calls_where_the_host_replays_it():
    texts = (
        *("HOST replay(3)", MATMUL, "HOST await_update(8)", NORM, "HOST replay_end(3)"),
        *("HOST update(8)", MATMUL),
    )
    found = recorded_pass(DECODE, list(map(LoggedCall, texts)))
    kinds = [one.kind for one in found.order.calls]
    assert kinds == [
        *("replay", "launch", "await_update", "launch", "replay_end", "update", "launch"),
    ]
    assert [(x.kernel, x.in_graph) for x in found.launches] == [
        *(("MatMulV2", True), ("RmsNorm", True), ("MatMulV2", False)),
    ]
    assert derived_again(found) == found
    two = ("HOST replay(3)", "HOST await_update(8)", "HOST await_update(9)", "HOST replay_end(3)")
    with pytest.raises(OpmeterError):
        recorded_pass(DECODE, list(map(LoggedCall, (*two, "HOST update(9)"))))


def recording_of(*texts):
    """A recording of a pass that makes these calls 64 times."""
    one = recorded_pass(DECODE, [*map(LoggedCall, texts)] * 64)
    return Recording(
        model="tiny",
        config_sha256="",
        release="vllm-ascend-0.18",
        layout={"tp": 1, "dp": 1, "ep": 1},
        device="A3",
        environment={},
        settings={"graph_sizes": [1, 2]},
        wheels={"vllm": "0.18.0"},
        host="a processor",
        passes=(one,),
    )


def test_recording_has_kernels_with_tensors_and_messages_with_bytes():
    found = recording_of(MATMUL, NORM, FUSED, ROTARY, GATHER)
    rows = {launch.kernel: (launch.record(), times) for _, launch, times in found.launches()}
    assert {times for _, times in rows.values()} == {64}
    assert rows["MatMulV2"][0].cells["Input Shapes"] == '"4,8;16,8"'
    assert rows["_triton_rope"][0].cells["Input Shapes"] == '"4,2,128;4,1,128;64,128;4"'
    assert "Input Shapes" not in rows["fused_kernel"][0].cells  # its slots are unknown
    ((_, message, times),) = found.messages()
    assert (message.operation, message.message_bytes, message.group_size) == ("all_gather", 64, 16)
    assert times == 64


def test_order_refers_to_the_tables_of_its_pass(tmp_path):
    found = recording_of(MATMUL, GATHER)
    calls = [PassCall(CallKind.LAUNCH, 0, 0, 900), PassCall(CallKind.MESSAGE, 1, 0, 40)] * 64
    for position, is_right in ((0, True), (1, False)):
        calls[-1] = PassCall(CallKind.MESSAGE, 1, position)
        one = replace(found.passes[0], order=CallOrder.of(calls))
        changed = replace(found, passes=(one,))
        path = tmp_path / "tiny.json.gz"
        path.write_bytes(write_recording(changed))
        if is_right:
            assert read_recording(path) == changed
        else:
            with pytest.raises(BadInput):
                read_recording(path)


def test_requests_that_pad_a_decode_have_their_new_tokens_as_keys():
    tensors = ["bf16[8,8,128]:ND", "{bf16[9,128,1024]:ND}", "{bf16[9,128,1024]:ND}", "0", "0"]
    lists = ["ints(1,2,3,4,5,+3)", "ints(4096,4096,4096,4096,0,0,0,0)", *["0"] * 7, "i32[8,33]:ND"]
    numbers = ["8", "2147483647", "2147483647", '"TND"', "8", "3", "0", "128", "0", "0"]
    arguments = ", ".join([*tensors, *lists, *["0"] * 12, *numbers, tensors[0], "f32[1]:ND"])
    found = recording_of(f"ACLNN aclnnFusedInferAttentionScoreV3({arguments})")
    ((_, launch, _),) = found.launches()
    ends, keys = (launch.extra[f"Runtime actual_seq_lengths_{name}values"] for name in ("", "kv_"))
    assert (ends, keys) == ("1,2,3,4,5,6,7,8", "4096,4096,4096,4096,1,1,1,1")


@pytest.mark.parametrize("version", ["V3", "V4"])
@pytest.mark.parametrize("listed", ["ints(4096,4096,4096,4096)", "ints(4096,+3)"])
def test_lengths_of_attention_are_columns(listed, version):
    tensors = ["bf16[4,8,128]:ND", "{bf16[9,128,1024]:ND}", "{bf16[9,128,1024]:ND}", "0", "0"]
    more = 2 if version == "V4" else 0
    rest = ["ints(1,2,3,4)", listed, *["0"] * 7, "i32[4,33]:ND", *["0"] * (12 + more)]
    numbers = ["8", "2147483647", "2147483647", '"TND"', "8", "3", "0", "128", "0", "0"]
    outputs = ["bf16[4,8,128]:ND", "f32[1]:ND"]
    arguments = ", ".join([*tensors, *rest, *numbers, *outputs])
    found = recording_of(f"ACLNN aclnnFusedInferAttentionScore{version}({arguments})")
    ((_, launch, _),) = found.launches()
    assert launch.extra["Runtime actual_seq_lengths_kv_values"] == "4096,4096,4096,4096"
    assert launch.extra["Runtime actual_seq_lengths_values"] == "1,2,3,4"
    assert launch.extra["Runtime block_size"] == "128"
    assert launch.extra["Runtime input_layout"] == "TND"
    assert "Runtime pre_tokens" not in launch.extra
    assert launch.kernel == "FusedInferAttentionScore"
    numbers[1], numbers[5] = "127", "4"
    arguments = ", ".join([*tensors, *rest, *numbers, *outputs])
    found = recording_of(f"ACLNN aclnnFusedInferAttentionScore{version}({arguments})")
    ((_, launch, _),) = found.launches()
    assert launch.extra["Runtime pre_tokens"] == "127"


def test_products_of_dispatched_experts_have_the_ends_of_their_rows():
    """Rank 0 of 4 sends 3 tokens to 2 of 8 experts each, and has two experts: it receives up to 24
    rows, 6 of them if experts are chosen evenly."""
    dispatch = (
        "ACLNN aclnnMoeDistributeDispatchV4(bf16[3,32]:ND, i32[3,2]:ND, 0, bool[3]:ND, 0, 0, 0, "
        '"group", 4, 0, 8, "group", 1, 0, 0, 1, 0, 0, 12, 1, "", 0, 0, 0, bf16[24,32]:ND, '
        "f32[24]:ND, i32[3072]:ND, i64[2]:ND, i32[8]:ND, i32[1]:ND, f32[24]:ND)"
    )
    product = (
        "ACLNN aclnnGroupedMatmulV5({{bf16[{0},32]:ND}}, {{bf16[2,32,64]:NCL}}, {{}}, {{}}, {{}}, "
        "{{}}, {{}}, {{}}, i64[2]:ND, {{}}, {{}}, {{}}, 3, 0, 0, 0, ints(), "
        "{{bf16[{0},64]:ND}}, {{}}, {{}})"
    )
    found = recording_of(dispatch, product.format(24), product.format(10))
    rows = [one for _, one, _ in found.launches() if one.kernel == "GroupedMatmul"]
    ends = [one.extra.get("Runtime group_list_values") for one in rows]
    assert ends == ["3,6", None]  # those of other products are all their rows


def test_messages_to_experts_have_the_number_of_ranks():
    """Ten choices of 512 experts, as Qwen3-Next has them."""
    dispatch = (
        "ACLNN aclnnMoeDistributeDispatchV4(bf16[4,1024]:ND, i32[4,10]:ND, 0, bool[4]:ND, 0, 0, 0, "
        '"group", 4, 0, 512, "group", 1, 0, 0, 1, 0, 0, 16, 1, "", 0, 0, 0, bf16[160,1024]:ND, '
        "f32[160]:ND, i32[20480]:ND, i64[128]:ND, i32[512]:ND, i32[1]:ND, f32[160]:ND)"
    )
    combine = (
        "ACLNN aclnnMoeDistributeCombineV4(bf16[160,1024]:ND, i32[4,10]:ND, i32[20480]:ND, "
        "i32[512]:ND, f32[4,10]:ND, i32[1]:ND, bool[4]:ND, 0, 0, 0, f32[160]:ND, 0, 0, 0, 0, 0, "
        '"group", 4, 0, 512, "group", 1, 0, 0, 1, 0, 16, 0, 0, 0, "", 0, 0, 0, bf16[4,1024]:ND)'
    )
    for _, launch, _ in recording_of(dispatch, combine).launches():
        assert launch.extra == {"EP Size": "4"}
        call = distribute_call(launch.record().case)
        assert (call.ep_size, call.choices, call.experts, call.capacity) == (4, 10, 512, 4)


@pytest.mark.parametrize(("page", "extra"), [(128, {}), (192, {"Runtime block_size": "192"})])
def test_places_in_pages_of_another_size_have_it(page, extra):
    call = (
        "CUSTOM triton._compute_slot_mapping_kernel(9, 64, i32[4]:ND, i64[9]:ND, i32[8,6]:ND, 6, "
        f'{page}, i32[64]:ND, 1, 0, 1, -1, 1024, "grid", ints(4), "2 3 4 -> 7")'
    )
    ((_, launch, _),) = recording_of(call).launches()
    assert launch.extra == extra


def launched(text):
    """Return each launch of a call as a line: its kernel, inputs and outputs."""
    rows = [launch for _, launch, _ in recording_of(text).launches()]
    cells = ("Input Shapes", "Input Data Types", "Output Shapes", "Output Data Types")
    return [
        " ".join((row.kernel, *(row.cells.get(cell, "N/A").strip('"') for cell in cells)))
        for row in rows
    ]


def test_arithmetic_of_two_dtypes_is_in_the_wider_one():
    assert launched("ACLNN aclnnMul(bool[4]:ND, i64[4]:ND, i64[4]:ND)") == [
        "Cast 4 BOOL 4 INT64",
        "Mul 4;4 INT64;INT64 4 INT64",
    ]
    assert launched("ACLNN aclnnInplaceAdd(i32[4]:ND, i64[4]:ND, i64=1)") == [
        "Cast 4 INT32 4 INT64",
        "Add 4;4 INT64;INT64 4 INT64",
        "Cast 4 INT64 4 INT32",
    ]
    assert launched("ACLNN aclnnMuls(bool[4]:ND, i64=0, i64[4]:ND)") == [
        "Cast 4 BOOL 4 INT64",
        "Mul 4; INT64;INT64 4 INT64",
    ]
    assert launched("ACLNN aclnnSub(i32[4]:ND, i32[4]:ND, i64=1, i32[4]:ND)") == [
        "Sub 4;4 INT32;INT32 4 INT32"
    ]
    assert launched("ACLNN aclnnMul(f32[4]:ND, bf16[4]:ND, f32[4]:ND)") == [
        "Mul 4;4 FLOAT;DT_BF16 4 FLOAT"  # which the kernel computes as it is
    ]


def test_views_are_copied_before_a_cast():
    column = "i32[4,3]:ND/8,1<32>"
    assert launched(f"ACLNN aclnnReduceSum({column}, ints(1), 0, 9, i64[4]:ND)") == [
        "Slice 4,8;2;2 INT32;INT64;INT64 4,3 INT32",
        "Cast 4,3 INT32 4,3 INT64",
        "ReduceSum 4,3;1 INT64;INT64 4 INT64",
    ]
    assert launched(f"ACLNN aclnnInplaceCopy(f32[4,3]:ND, {column})") == [
        "Slice 4,8;2;2 INT32;INT64;INT64 4,3 INT32",
        "Cast 4,3 INT32 4,3 FLOAT",
    ]


def test_views_are_cut_ordered_and_repeated():
    """The shapes that CANN derives from strides: sizes of 1 and repeated ones come last."""
    cases = {
        "bf16[6,4,64]:NCL, bf16[6,4,64]:NCL/64,0,1<384>": [
            "BroadcastTo 6,1,64;3 DT_BF16;INT64 6,4,64 DT_BF16"
        ],
        "bf16[6,4,1,16]:NCHW, bf16[6,4,1,16]:NCHW/16,96,16,1": [
            "Transpose 4,6,16;3 DT_BF16;INT64 6,4,16 DT_BF16"
        ],
        "f32[4]:ND, f32[4]:ND/24+3<96>": ["Slice 4,24;2;2 FLOAT;INT64;INT64 4,1 FLOAT"],
        "bf16[6,4,64]:NCL, bf16[6,4,64]:NCL/576,0,1+512<3456>": [
            "Slice 6,576;2;2 DT_BF16;INT64;INT64 6,64 DT_BF16",
            "BroadcastTo 6,1,64;3 DT_BF16;INT64 6,4,64 DT_BF16",
        ],
        "bf16[4,6,20]:NCL, bf16[4,6,20]:NCL/32,128,1<768>": [
            "Slice 6,4,32;3;3 DT_BF16;INT64;INT64 6,4,20 DT_BF16",
            "Transpose 6,4,20;3 DT_BF16;INT64 4,6,20 DT_BF16",
        ],
        "bool[16]:ND, bool[16]:ND/0<1>": [
            "Cast 1 BOOL 1 INT32",
            "BroadcastTo 1;1 INT32;INT64 16 INT32",
            "Cast 16 INT32 16 BOOL",
        ],
        "bf16[4,6,64]:NCL, bf16[4,6,64]:NCL/96,384,1<2304>": ["AsStrided N/A N/A 4,6,64 DT_BF16"],
    }
    for tensors, steps in cases.items():
        assert launched(f"ACLNN aclnnInplaceCopy({tensors})") == steps


def test_weights_of_four_bits_and_their_scales_have_the_dtypes_of_the_kernel():
    """torch has INT4 eight to an INT32, and packed scales as INT64."""
    weight, rows = "i32[3,128,8]:FRACTAL_NZ<3,1,8,16,32>", "f32[10]:ND"
    product = (
        f"ACLNN aclnnGroupedMatmulWeightNz({{i8[10,128]:ND}}, {{{weight}}}, {{f32[3,64]:ND}}, "
        f"{{i64[3,1,64]:NCL}}, {{}}, {{}}, {{}}, {{{rows}}}, i64[3]:ND, {{}}, {{}}, {{}}, 2, 0, 1, "
        "0, ints(), 0, {bf16[10,64]:ND}, {}, {})"
    )
    activated = (
        f"ACLNN aclnnGroupedMatmulSwigluQuantWeightNzV2(i8[10,128]:ND, {{{weight}}}, "
        f"{{i64[3,64]:ND}}, {{f32[3,64]:ND}}, 0, {rows}, 0, i64[3]:ND, 0, 0, 0, 1, ints(), "
        "i8[10,32]:ND, f32[10]:ND)"
    )
    assert launched(product) == [
        "GroupedMatmul 10,128;3,1,8,16,64;3,64;3,1,64;;;;3;10 "
        "INT8;INT4;FLOAT;UINT64;;;;INT64;FLOAT 10,64 DT_BF16"
    ]
    assert launched(activated) == [
        "GroupedMatmulSwigluQuantV2 10,128;10;3;3,1,8,16,64;3,64;3,64 "
        "INT8;FLOAT;INT64;INT4;UINT64;FLOAT 10,32;10 INT8;FLOAT"
    ]


def test_a_value_is_spread_over_what_its_indices_select():
    assert launched("ACLNN aclnnIndexPutImpl(f32[20,8]:ND, {i64[6]:ND}, f32[]:ND, 0, 0)") == [
        "BroadcastTo 1,1;2 FLOAT;INT64 6,8 FLOAT",
        "IndexPutV2 20,8;6,8;1;1;6 FLOAT;FLOAT;INT64;INT64;INT64 20,8 FLOAT",
    ]
    assert launched("ACLNN aclnnIndexPutImpl(f32[20,8]:ND, {i64[6]:ND}, f32[6,8]:ND, 0, 0)") == [
        "IndexPutV2 20,8;6,8;1;1;6 FLOAT;FLOAT;INT64;INT64;INT64 20,8 FLOAT"
    ]


def test_a_scalar_is_filled_as_one_number():
    (row,) = launched("ACLNN aclnnInplaceFillScalar(i64[]:ND, i64=0)")
    assert row == "Fill 1; INT64;INT64  INT64"


def test_host_scalar_is_an_input_of_the_kernel():
    texts = (
        "ACLNN aclnnInplaceMuls(f32[4,8]:ND, f64=-1)",
        "ACLNN aclnnMuls(bf16[4,8]:ND, f64=0.5, bf16[4,8]:ND)",
        "ACLNN aclnnSubs(i32[4]:ND, i64=1, i64=1, i32[4]:ND)",
    )
    rows = [launch for _, launch, _ in recording_of(*texts).launches()]
    shown = [(row.kernel, row.cells["Input Shapes"], row.cells["Output Shapes"]) for row in rows]
    assert shown == [
        ("Mul", '"4,8;"', '"4,8"'),
        ("Muls", '"4,8"', '"4,8"'),
        ("Sub", '"4;"', '"4"'),
    ]


def test_tensor_without_elements_launches_no_kernel():
    found = recording_of("ACLNN aclnnInplaceFillScalar(i32[0,64]:ND+64<1024>, i64=0)")
    assert not list(found.launches())


def test_boolean_operators_are_logical():
    name = "ACLNN aclnnBitwiseNot({0}[4]:ND, {0}[4]:ND)"
    found = [recording_of(name.format(dtype)) for dtype in ("bool", "i32")]
    kernels = [launch.kernel for one in found for _, launch, _ in one.launches()]
    assert kernels == ["LogicalNot", "Invert"]


def test_recording_is_read_as_written(tmp_path):
    path = tmp_path / "a.json.gz"
    found = recording_of(MATMUL, GATHER)
    path.write_bytes(write_recording(found))
    assert read_recording(path) == found
    assert write_recording(read_recording(path)) == path.read_bytes()


def test_malformed_recording_is_refused(tmp_path):
    path = tmp_path / "a.json.gz"
    for data in (b"", b"text", gzip.compress(b"{}"), gzip.compress(b"[]")):
        path.write_bytes(data)
        with pytest.raises(BadInput) as raised:
            read_recording(path)
        assert raised.value.path == path or str(raised.value.path) == str(path)
    value = json.loads(gzip.decompress(write_recording(recording_of(MATMUL))))
    path.write_bytes(gzip.compress(json.dumps({**value, "layers": {"moe": 1}}).encode()))
    with pytest.raises(BadInput):
        read_recording(path)
    path.write_bytes(gzip.compress(json.dumps({**value, "version": 3}).encode()))
    with pytest.raises(NewerFormat):
        read_recording(path)


def test_recording_that_no_run_wrote_is_refused(tmp_path):
    path = tmp_path / "a.json.gz"
    whole = write_recording(recording_of(MATMUL))
    value = json.loads(gzip.decompress(whole))
    one = value["passes"][0]
    message = {"call": "", "operation": "allReduce", "message_bytes": -8, "dtype": "BF16"}
    message |= {"group_size": 2, "in_graph": False}
    sent = {"distinct": [["launch", 0, 0], ["message", 0, 0]], "order": [0, 1], "host_ns": [1, 1]}
    of_pass = [
        *({"launches": []}, {"launches": one["launches"] * 2}, {"keys": -4}),
        {"messages": [message], "order": sent},
        {"copies": [{"direction": "up", "size_bytes": 8, "is_blocking": False}]},
    ]
    changed = [{"passes": [one | change]} for change in of_pass]
    changed += [{"layout": {"tp": -1}}]
    files = [gzip.compress(json.dumps(value | one).encode()) for one in changed]
    text = json.dumps(value)
    files += [
        whole + whole,
        gzip.compress(text.replace("{", '{"model": "b", ', 1).encode()),
        gzip.compress(b'{"passes":[' + b"{}," * (1 << 23) + b"{}]}"),  # above the ratio
        gzip.compress(b"[" + b"1," * 4_000_001 + b"1]"),  # below it, and too many values
    ]
    for data in files:
        path.write_bytes(data)
        with pytest.raises(BadInput) as raised:
            read_recording(path)
        assert str(raised.value.path) == str(path)


def test_models_have_the_files_of_their_folder(tmp_path):
    assert find_model("Qwen/Qwen3-32B").text["num_hidden_layers"] == 64
    folder = tmp_path / "Qwen3-32B"
    folder.mkdir()
    (folder / "config.json").write_bytes(b'{"text_config": {"num_hidden_layers": 7}}')
    (folder / "model.safetensors").write_bytes(b"weights")
    found = find_model(str(folder))  # not the bundled one
    assert (found.name, list(found.files)) == ("Qwen3-32B", ["config.json"])
    assert found.text["num_hidden_layers"] == 7
    assert not (found.has_code or found.is_quantised)
    (folder / "modeling_own.py").write_text("")
    (folder / "quant_model_description.json").write_text("{}")
    whole = find_model(str(folder))
    assert whole.has_code and whole.is_quantised and whole.sha256 != found.sha256
    (folder / "config.json").write_text("[]")
    for model in (str(folder), "no-such-model"):
        with pytest.raises(BadInput):
            find_model(model)


def test_unsupported_settings_are_refused():
    with pytest.raises(BadInput, match="ep"):
        check_settings(EngineSettings("vllm-ascend-0.18", (), tp=4, ep=2))
    with pytest.raises(BadInput, match="--env"):
        read_environment(["NAME"])


def test_views_indices_and_products_have_the_tensors_of_their_kernels():
    texts = (
        "ACLNN aclnnInplaceCopy(bf16[1,16,1,64]:NCHW, bf16[1,16,1,64]:NCHW/2048,128,64,1+64<2048>)",
        "ACLNN aclnnIndex(f32[6,9,4]:NCL, {i64[5]:ND, i32[5]:ND}, f32[5,4]:ND)",
        "ACLNN aclnnMatmul(bf16[9,1,1,8]:NCHW, bf16[8,16]:ND/1,8, bf16[9,1,1,16]:NCHW, 0)",
        "CUSTOM batch_matmul_transpose(bf16[3,2,32]:ND, bf16[2,32,16]:ND, bf16[3,2,16]:ND, 0, 0)",
    )
    rows = [launch for _, launch, _ in recording_of(*texts).launches()]
    shown = [(row.kernel, row.cells["Input Shapes"], row.cells["Output Shapes"]) for row in rows]
    assert shown == [
        ("Slice", '"1,16,2,64;4;4"', '"1,16,1,64"'),
        ("Index", '"6,9,4;2;2;5;5"', '"5,4"'),
        ("MatMulV2", '"9,8;16,8"', '"9,16"'),
        ("batch_matmul_transpose_0", '"3,2,32;2,32,16"', '"3,2,16"'),
    ]


def test_a_copy_into_a_view_shows_the_memory_of_both():
    cells = cells_of(parse_call("ACLNN aclnnInplaceCopy(f32[3,8]:ND/16,1<48>, f32[3,8]:ND)"))
    assert cells["Input Shapes"] == '"48;2;2;1;3,8;2;2;1"'
    assert (cells["Output Shapes"], cells["Output Data Types"]) == ('"48"', "FLOAT")


def test_attention_to_selected_keys_has_the_lengths_of_the_pass():
    text = "ACLNN aclnnSparseFlashAttention(bf16[4,8,512]:NCL, i32[4]:ND+1<6>, bf16[4,8,512]:NCL)"
    ((_, launch, _),) = recording_of(text).launches()
    assert launch.extra["Runtime actual_seq_lengths_kv_values"] == "4096,4096,4096,4096"
    assert launch.extra["Runtime actual_seq_lengths_values"] == "1,2,3,4"


def test_message_of_all_to_all_is_the_tensor_of_a_rank():
    """HCCL's count is what goes to each of the ranks."""
    (message,) = recording_of("HCCL HcclAlltoAll(bf16[4096]:ND, ranks=8)").passes[0].messages
    assert (message.operation, message.message_bytes) == ("all_to_all_single", 2 * 4096 * 8)


def test_a_rank_that_shares_tokens_has_the_lengths_of_the_first_ones():
    """Of four requests in a graph of eight, one of four ranks has the first two."""
    text = "ACLNN aclnnLightningIndexerVllm(bf16[2,8,128]:NCL, i32[8]:ND, i32[8]:ND, i32[8,9]:ND)"
    ((_, launch, _),) = recording_of(text).launches()
    assert launch.extra["Runtime actual_seq_lengths_values"] == "1,2,2,2,2,2,2,2"
    assert launch.extra["Runtime actual_seq_lengths_kv_values"] == "4096,4096,0,0,0,0,0,0"


def test_operands_of_products_have_the_layout_that_their_kernels_read():
    experts = (
        "ACLNN aclnnDispatchFFNCombine(bf16[1,64]:ND, {i8[4,64,32]:FRACTAL_NZ<4,1,4,16,32>}, "
        "{i8[4,16,64]:FRACTAL_NZ<4,2,1,16,32>}, i32[1,8]:ND, {i64[128]:ND}, {i64[256]:ND}, "
        'f32[1,8]:ND, "group", 65536, bf16[1,64]:ND, i32[4]:ND)'
    )
    floating = (
        "ACLNN aclnnDispatchFFNCombineBF16(bf16[1,64]:ND, "
        "{bf16[4,64,32]:FRACTAL_NZ<4,2,4,16,16>}, {bf16[4,16,64]:FRACTAL_NZ<4,4,1,16,16>}, "
        "i32[1,8]:ND, {i64[0]:ND}, {i64[0]:ND}, f32[1,8]:ND, "
        '"group", 65536, bf16[1,64]:ND, i32[4]:ND)'
    )
    for text, inputs, outputs in (
        # rows of a batch in the order of tokens
        (
            "ACLNN aclnnBatchMatMul(bf16[16,8,128]:NCL/192,3072,1, bf16[16,128,512]:NCL, "
            "bf16[16,8,512]:NCL, 0)",
            *("16,8,128;16,128,512", "16,8,512"),
        ),
        (
            "ACLNN aclnnBatchMatMul(bf16[2,8,128]:NCL, bf16[2,128,32]:NCL/4096,1,128, "
            "bf16[2,8,32]:NCL, 0)",
            *("2,8,128;2,32,128", "2,8,32"),
        ),
        (
            "ACLNN aclnnMatmul(bf16[257,1,1,512]:NCHW, bf16[512,4096]:ND/1,512, "
            "bf16[257,1,1,4096]:NCHW, 0)",
            *("257,512;4096,512", "257,4096"),
        ),
        (experts, "1,64;4,64,32;4,16,64;1,8;128;256;1,8", "1,64;4"),
        (floating, "1,64;4,64,32;4,16,64;1,8;;;1,8", "1,64;4"),
        ("ACLNN aclnnMax(i32[2,3]:ND, i32[]:ND)", "2,3;2", ""),
    ):
        cells = cells_of(parse_call(text))
        shown = (cells["Input Shapes"], cells["Output Shapes"])
        assert shown == (f'"{inputs}"', f'"{outputs}"'), text


def test_inputs_computed_in_another_dtype_are_converted_first():
    for text, kernels in (
        (
            "aclnnAdd(bf16[4,6]:ND, bf16[6]:ND, f64=2.5, bf16[4,6]:ND)",
            [
                "Mul DT_BF16;DT_BF16 6; -> DT_BF16 6",
                "Add DT_BF16;DT_BF16 4,6;6 -> DT_BF16 4,6",
            ],
        ),
        (
            "aclnnAdd(f32[4,6]:ND, f32[6]:ND, f64=2.5, f32[4,6]:ND)",
            ["Axpy FLOAT;FLOAT 4,6;6 -> FLOAT 4,6"],
        ),
        (
            "aclnnAddcmul(f32[4,6]:ND, f32[6]:ND, f32[4,1]:ND, i64=1, f32[4,6]:ND)",
            ["AxpyV2 FLOAT;FLOAT;FLOAT 4,6;6;4,1 -> FLOAT 4,6"],
        ),
        (
            "aclnnAddcmul(f32[6]:ND, f32[6]:ND, f32[4,1]:ND, i64=1, f32[4,6]:ND)",
            ["Addcmul FLOAT;FLOAT;FLOAT 6;6;4,1 -> FLOAT 4,6"],
        ),
        (
            "aclnnAdds(bf16[64]:ND, i64=1, i64=1, bf16[64]:ND)",
            ["Add DT_BF16;DT_BF16 64; -> DT_BF16 64"],
        ),
        (
            "aclnnAdds(bool[8]:ND, i64=1, i64=1, i64[8]:ND)",
            ["Cast BOOL 8 -> INT64 8", "Add INT64;INT64 8; -> INT64 8"],
        ),
        ("aclnnFloorDivides(i32[2]:ND, i64=64, i32[2]:ND)", ["FloorDiv INT32;INT32 2; -> INT32 2"]),
        ("aclnnEqScalar(i32[6]:ND, i64=0, bool[6]:ND)", ["Equal INT32;INT32 6; -> BOOL 6"]),
        (
            "aclnnGtScalar(i32[6]:ND, i64=0, bool[6]:ND)",
            ["Cast INT32 6 -> INT64 6", "Greater INT64;INT64 6; -> BOOL 6"],
        ),
        (
            "aclnnRemainderTensorScalar(i32[4,6]:ND, i64=128, i32[4,6]:ND)",
            [
                "BroadcastTo INT32;INT64 ;2 -> INT32 4,6",
                "FloorMod INT32;INT32 4,6;4,6 -> INT32 4,6",
            ],
        ),
        (
            "aclnnReduceSum(i32[4,16]:ND, ints(-1), 0, 9, i64[4]:ND)",
            ["Cast INT32 4,16 -> INT64 4,16", "ReduceSum INT64;INT64 4,16;1 -> INT64 4"],
        ),
        (
            "aclnnReduceSum(bool[4,16]:ND, ints(), 0, 9, i64[]:ND)",
            [
                "Cast BOOL 4,16 -> FLOAT 4,16",
                "ReduceSum FLOAT;INT64 4,16;2 -> FLOAT ",
                "Cast FLOAT  -> INT64 ",
            ],
        ),
        (
            "aclnnCumsum(i32[3]:ND, -1, 9, i64[3]:ND)",
            ["Cast INT32 3 -> INT64 3", "Cumsum INT64;INT32 3;1 -> INT64 3"],
        ),
    ):
        found = []
        for _, launch, _ in recording_of(f"ACLNN {text}").launches():
            sides = (
                " ".join((launch.cells[f"{side} Data Types"], launch.cells[f"{side} Shapes"]))
                for side in ("Input", "Output")
            )
            found.append(f"{launch.kernel} {' -> '.join(sides)}".replace('"', ""))
        assert found == kernels, text
