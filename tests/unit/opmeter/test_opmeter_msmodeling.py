"""The data source of msmodeling on merged databases, without msmodeling and torch: calls are
objects with its fields. `tests/stacks/test_stacks_consumers.py` runs msmodeling itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from collector.codec.errors import BadInput
from collector.model.demand import read_misses
from collector.ops.refusals import refusal
from collector.ops.registry import find_operator
from collector.ranks.collective import Collective, CollectiveCase, collective_case_of
from collector.ranks.topology import Grid
from jobs.planning.sources import completed_case
from opmeter.adapters.calls import ADDED, AS_OTHER
from opmeter.adapters.msmodeling import OpmeterDataSource, QueryResult, QuerySource
from opmeter.cases import Shape
from opmeter.misses import MissLog
from tests.unit.opmeter.made import Row, merged, product, recorded

pytestmark = pytest.mark.fast


@dataclass
class Tensor:
    shape: tuple[int, ...]
    dtype: str = "torch.bfloat16"


class Lengths(list[int]):
    shape, dtype = (2,), "torch.int32"

    def tolist(self) -> list[int]:
        return list(self)


@dataclass
class OpInvokeInfo:
    func: str
    args: tuple[Any, ...]
    out: Any = None


MAPPING = """\
operator_mappings:
  aten.mm.default: {kernel_type: MatMulV3, alternate_kernel_types: [MatMulV2]}
  aten.view.default: {zero_cost: true}
  aten.add.Tensor: {kernel_type: Add, query_mode: elementwise}
  aten.embedding.default: {kernel_type: GatherV2, tc_input_count: 2}
  tensor_cast.rms.default: {kernel_type: RmsNorm}
  tensor_cast.attention.default:
    {kernel_type: FusedInferAttentionScore, query_mode: attention_special}
  tensor_cast.all_reduce.default: {kernel_type: hcom_allReduce_, category: communication}
"""
CACHE = [(100, 128, 256), (100, 128, 256)]


def attention(length: int, mean_us: float, ends: str = "") -> Row:
    extra = {"Runtime avg_seq_len": f"{length}.000000", "Runtime num_key_value_heads": "2"}
    if ends:
        extra["Runtime actual_seq_lengths_values"] = ends
    shapes = [(4, 16, 128), *CACHE]
    return Row("FusedInferAttentionScore", shapes, [(4, 16, 128)], mean_us, extra=extra)


VERSION = merged(
    [
        product(16, 768, 5120, 10.0),
        product(64, 768, 5120, 20.0),
        Row("MatMulV2", [(16, 512), (16, 32, 16, 16)], [(16, 256)], 7.0, formats="ND;FRACTAL_NZ"),
        Row("Add", [(8, 64), (8, 64)], [(8, 64)], 3.0),
        Row("GatherV2", [(1000, 64), (8,), (1,)], [(8, 64)], 4.0, "DT_BF16;INT64;INT64"),
        Row("RmsNorm", [(8, 64), (64,)], [(8, 64)], 2.0),
        *(attention(length, mean_us) for length, mean_us in ((1024, 30.0), (4096, 90.0))),
        attention(1030, 50.0, "4"),  # one request of four tokens
    ]
)


@pytest.fixture
def source(tmp_path: Path) -> OpmeterDataSource:
    (tmp_path / "op_mapping.yaml").write_text(MAPPING)
    return OpmeterDataSource(VERSION, tmp_path / "op_mapping.yaml")


def mm(m: int, k: int, n: int, dtype: str = "torch.bfloat16") -> OpInvokeInfo:
    return OpInvokeInfo("aten.mm.default", (Tensor((m, k), dtype), Tensor((k, n), dtype)))


def test_lookup_has_latency_interval_and_source(
    source: OpmeterDataSource,
) -> None:
    found = source.lookup(mm(16, 5120, 768))
    assert isinstance(found, QueryResult)
    assert (found.latency_us, found.source) == (10.0, QuerySource.MEASURED)
    half_width = (found.details["high_us"] - found.details["low_us"]) / 2 / 10.0
    assert found.confidence == pytest.approx(max(0.0, 1 - half_width)) and half_width > 0
    assert found.details["kernel_type"] == "MatMulV2" and found.details["channel"] == "measured"
    between = source.lookup(mm(32, 5120, 768))
    assert between.source is QuerySource.INTERPOLATED and 10 < between.latency_us < 20
    assert source.lookup(OpInvokeInfo("torch.ops.aten.view.default", ())).latency_us == 0.0


def test_without_a_mapping_the_declared_one_is_used() -> None:
    source = OpmeterDataSource(VERSION)
    assert source.lookup(mm(16, 5120, 768)).latency_us == 10.0
    assert source.lookup(OpInvokeInfo("aten.view.default", ())).latency_us == 0.0


def test_calls_are_matched_as_kernels_record_them(source: OpmeterDataSource) -> None:
    calls = {
        "float16 as bf16": (mm(16, 5120, 768, "torch.float16"), 10.0),
        "blocked weight": (mm(16, 512, 256), 7.0),
        "leading batch": (
            OpInvokeInfo("aten.mm.default", (Tensor((1, 16, 5120)), Tensor((5120, 768)))),
            10.0,
        ),
        "transposed weight": (
            OpInvokeInfo("aten.mm.default", (Tensor((16, 5120)), Tensor((768, 5120)))),
            10.0,
        ),
        "elementwise by output": (
            OpInvokeInfo("aten.add.Tensor", (Tensor((8, 64)), 1.0), Tensor((1, 8, 64))),
            3.0,
        ),
        "the first inputs": (
            OpInvokeInfo(
                "aten.embedding.default", (Tensor((1000, 64)), Tensor((8,), "torch.int64"))
            ),
            4.0,
        ),
        "flattened tokens": (
            OpInvokeInfo("tensor_cast.rms.default", (Tensor((2, 4, 64)), Tensor((64,)), 1e-6)),
            2.0,
        ),
    }
    found = {name: source.lookup(call) for name, (call, _) in calls.items()}
    assert {name: one and one.latency_us for name, one in found.items()} == {
        name: latency_us for name, (_, latency_us) in calls.items()
    }


@pytest.mark.parametrize("dtype", ["torch.bfloat16", "torch.float16"])
def test_attention_is_looked_up_by_its_mean_length(source: OpmeterDataSource, dtype: str) -> None:
    def attend(*lengths: int) -> Any:
        key = Tensor((100, 128, 2, 128), dtype)
        args = (Tensor((4, 16, 128), dtype), key, key, None, None, None, Lengths(lengths), None)
        return source.lookup(OpInvokeInfo("tensor_cast.attention.default", args))

    near = attend(1000, 1060)
    assert (near.latency_us, near.source) == (30.0, QuerySource.MEASURED)
    assert near.details["length_gap"] == 6.0
    assert (AS_OTHER in near.details["warnings"]) == (dtype == "torch.float16")
    assert attend(1030).latency_us == 50.0
    between = attend(2048, 2048)
    assert between.source is QuerySource.INTERPOLATED
    assert between.latency_us == pytest.approx((30 * 90) ** 0.5)
    assert between.details["low_us"] < 30 and between.details["high_us"] > 90
    assert attend(9000, 9000) is None and source.last_miss_reason == "shape_mismatch"


ALIKE = merged(
    [
        *(
            Row("Add", [None, None], [()], mean_us, f"{dtype};{dtype}")
            for dtype, mean_us in (("FLOAT", 1.0), ("INT64", 2.0))
        ),
        Row("Add", [(8, 64), None], [(8, 64)], 3.0, "DT_BF16;FLOAT"),
        Row("Add", [(8, 64), (8, 64)], [(8, 64)], 4.0),
        Row("Add", [(4096, 4096)], [(4096, 4096)], 413.8),
        Row("RmsNorm", [(8, 64), (64,)], [(8, 64)], 5.0),
        Row("RmsNorm", [(2, 4, 64), (64,)], [(2, 4, 64)], 6.0),
        Row("RmsNorm", [(2, 4, 64), (64,)], [(2, 4, 64)], 7.0, "FLOAT16"),
        Row("Cast", [(32,)], [(32,)], 8.0, out="FLOAT"),
        Row("Cast", [(32,)], [(32,)], 9.0, out="INT32"),
        Row("TensorMove", [(32,)], [(32,)], 10.0),
    ]
)


@pytest.mark.parametrize(
    ("operator", "args", "out", "expected"),
    [
        ("add", [((), "float32"), ((), "float32")], ((), "float32"), 1.0),
        ("add", [((), "int64"), ((), "int64")], ((), "int64"), 2.0),
        ("add", [((), "bool"), ((), "bool")], ((), "bool"), None),
        ("add", [((8, 64), "bfloat16"), ((), "float32")], ((8, 64), "bfloat16"), 3.0),
        ("add", [((8, 64), "bfloat16"), ((8, 64), "bfloat16")], ((8, 64), "bfloat16"), 4.0),
        ("rms", [((8, 64), "bfloat16"), ((64,), "bfloat16")], None, 5.0),
        ("rms", [((2, 4, 64), "bfloat16"), ((64,), "bfloat16")], None, 6.0),
        ("rms", [((2, 4, 64), "float16"), ((64,), "float16")], None, 7.0),
        ("to", [((32,), "bfloat16")], ((32,), "float32"), 8.0),
        ("to", [((32,), "bfloat16")], ((32,), "int32"), 9.0),
        ("to", [((32,), "bfloat16")], ((32,), "bfloat16"), 10.0),
        ("to", [((32,), "bfloat16")], ((32,), "float64"), None),
    ],
)
def test_a_call_is_answered_by_its_own_case(
    operator: str, args: list[tuple[Shape, str]], out: tuple[Shape, str] | None, expected: float
) -> None:
    """Scalars, dimensions, dtypes and outputs distinguish cases that are alike otherwise."""
    operators = {
        "add": {"kernel_type": "Add", "query_mode": "elementwise"},
        "rms": {"kernel_type": "RmsNorm"},
        "to": {"kernel_type": "Cast", "alternate_kernel_types": ["TensorMove"]},
    }
    source = OpmeterDataSource(ALIKE, {"operator_mappings": operators})
    tensors = tuple(Tensor(shape, f"torch.{dtype}") for shape, dtype in args)
    made = Tensor(out[0], f"torch.{out[1]}") if out else None
    found = source.lookup(OpInvokeInfo(operator, tensors, made))
    assert (found and found.latency_us) == expected
    assert found is None or not found.details["warnings"]


def test_a_conversion_is_answered_by_a_case_of_its_output_dtype_or_missed(tmp_path: Path) -> None:
    version = merged(
        [
            Row("Cast", [(32,)], [(32,)], 9.0, out="INT32"),
            *(Row("Cast", [(n,)], [(n,)], n / 4, "FLOAT", out="DT_BF16") for n in (32, 128)),
            Row("TensorMove", [(32,)], [(32,)], 10.0),
        ]
    )
    log = MissLog(tmp_path / "misses.jsonl")
    source = OpmeterDataSource(version, misses=log)  # with the mapping that opmeter writes

    def convert(size: int, dtype: str, out: str) -> Any:
        tensor, made = Tensor((size,), f"torch.{dtype}"), Tensor((size,), f"torch.{out}")
        return source.lookup(OpInvokeInfo("aten.to.dtype", (tensor,), made))

    assert convert(32, "bfloat16", "int32").latency_us == 9.0
    assert convert(32, "bfloat16", "bfloat16").latency_us == 10.0
    for out in ("float32", "int64", "bool"):
        assert convert(32, "bfloat16", out) is None
    # As for inputs, float16 is looked up as bfloat16.
    for size in (32, 64):
        half, own = (convert(size, "float32", out) for out in ("float16", "bfloat16"))
        assert half.latency_us == own.latency_us
        assert set(half.details["warnings"]) > set(own.details["warnings"])
        assert convert(size, "float32", "int16") is None
    log.write()
    missed = {one.demand.record.cells["Output Data Types"] for one in read_misses(log.path)}
    assert missed == {"FLOAT", "INT64", "BOOL", "INT16"}


def test_an_answer_states_what_differs_from_the_call(source: OpmeterDataSource) -> None:
    half = source.lookup(mm(16, 5120, 768, "torch.float16"))
    assert half.details["warnings"] == [AS_OTHER]
    plain = {"aten.silu.default": {"kernel_type": "Add"}}
    one = OpmeterDataSource(VERSION, {"operator_mappings": plain}).lookup(
        OpInvokeInfo("aten.silu.default", (Tensor((8, 64)),))
    )
    assert one.details["warnings"] == [ADDED]


def test_miss_has_a_reason_is_counted_and_uses_the_fallback(tmp_path: Path) -> None:
    class Fallback:
        last_miss_reason = "csv_format_raw"

        def lookup(self, op_invoke_info: Any) -> Any:
            is_message = "all_reduce" in op_invoke_info.func
            return QueryResult(5.0, 0.8, QuerySource.MEASURED) if is_message else None

    (tmp_path / "op_mapping.yaml").write_text(MAPPING)
    log = MissLog(tmp_path / "misses.jsonl")
    source = OpmeterDataSource(VERSION, tmp_path / "op_mapping.yaml", misses=log)
    assert source.lookup(OpInvokeInfo("aten.sort.default", ())) is None
    assert source.last_miss_reason == "unmapped"
    for _ in range(2):
        assert source.lookup(mm(999, 5120, 768)) is None
    assert source.last_miss_reason == "shape_mismatch"
    log.write()
    (one,) = read_misses(log.path)
    assert (one.kernel_type, one.count, one.reason) == ("MatMulV2", 2, "outside")
    with pytest.raises(NotImplementedError):
        source.store(mm(1, 1, 1), None)
    source = OpmeterDataSource(VERSION, {**_plain()}, fallback=Fallback())
    message = OpInvokeInfo("tensor_cast.all_reduce.default", (Tensor((8, 8)), 0, [0, 1]))
    assert source.lookup(message).latency_us == 5.0
    assert source.lookup(mm(999, 1, 1)) is None and source.last_miss_reason == "csv_format_raw"


def test_an_invalid_mapping_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "op_mapping.yaml"
    file.write_text("operator_mappings:\n  aten.mm.default: {}\n")
    with pytest.raises(BadInput) as refused:
        OpmeterDataSource(VERSION, file)
    assert refused.value.line == 2


def _plain() -> dict[str, Any]:
    mm_mapping = {"kernel_type": "MatMulV2"}
    message = {"kernel_type": "hcom_allReduce_", "category": "communication"}
    operators = {"aten.mm.default": mm_mapping, "tensor_cast.all_reduce.default": message}
    return {"operator_mappings": operators}


def paged(requests: int, keys: Sequence[int], *, flat: bool, table: int = 3) -> Row:
    """Decoding requests with pages of 16 keys, as profilers record them."""
    pool = (9, 16, 2 * 16) if flat else (9, 2, 16, 16)
    query: Shape = (requests, 4, 16)
    inputs = [query, pool, pool, None, (2048, 2048), (requests,), (requests,), *[None] * 7]
    dtypes = ["DT_BF16"] * 3 + ["DT_UNDEFINED", "INT8", "INT64", "INT64"] + ["DT_UNDEFINED"] * 7
    formats = ["ND" if shape else "NULL" for shape in inputs]
    ends = range(1, requests + 1)
    extra = {
        "Runtime actual_seq_lengths_kv_values": ",".join(map(str, keys)),
        "Runtime actual_seq_lengths_values": ",".join(map(str, ends)),
        "Runtime avg_seq_len": f"{sum(keys) / requests:.6f}",
        "Runtime block_table_shape": f"{requests},{table}",
        "Runtime input_layout": "TND",
        "Runtime num_key_value_heads": "2",
        "Runtime sparse_mode": "3",
    }
    return Row(
        *("FusedInferAttentionScore", [*inputs, (requests, table)], [query], 30.0),
        dtype=";".join([*dtypes, "INT32"]),
        formats=";".join([*formats, "ND"]),
        extra=extra,
    )


@pytest.mark.parametrize(("flat", "dtype"), [(True, "torch.bfloat16"), (False, "torch.float16")])
def test_misses_of_attention_become_cases_that_can_be_measured(
    tmp_path: Path, flat: bool, dtype: str
) -> None:
    known = paged(2, (20, 30), flat=flat)
    assert refusal(completed_case(known.record).case, find_operator, "npu") is None
    log = MissLog(tmp_path / "misses.jsonl")

    def attend(source: OpmeterDataSource, heads: int, *lengths: int) -> Any:
        key = Tensor((100, 128, heads, 16), dtype)
        query = Tensor((len(lengths), 4, 16), dtype)
        args = (query, key, key, None, None, None, Lengths(lengths), None)
        return source.lookup(OpInvokeInfo("tensor_cast.attention.default", args))

    # More keys than the table and the pool have, other numbers of requests, and unknown heads.
    requested = ((500, 100), (40,), (900, 1, 90))
    source = OpmeterDataSource(merged([known]), _mapping(), misses=log)
    assert [attend(source, 2, *lengths) for lengths in requested] == [None] * 3
    assert attend(source, 4, 500, 100) is None
    found = [one.demand.record for one in log.misses]
    assert len(found) == 3 == len(log)
    for record in found:
        assert refusal(completed_case(record).case, find_operator, "npu") is None
    measured = [recorded(record, 70.0) for record in found]
    source = OpmeterDataSource(merged([known, *measured]), _mapping())
    for lengths in requested:
        result = attend(source, 2, *lengths)
        assert result.latency_us == 70.0
        assert result.details["length_gap"] == pytest.approx(0.0, abs=1e-5)


def test_misses_of_messages_become_cases_of_their_group(tmp_path: Path) -> None:
    grid = Grid((4, 8, 2))

    def message(size_bytes: int, group: int, tier: int, mean_us: float) -> Row:
        one = Collective("all_reduce", size_bytes, "bfloat16", group, tier)
        return recorded(CollectiveCase(one, grid, 64, "kernel").record(), mean_us)

    log = MissLog(tmp_path / "misses.jsonl")

    def reduce(source: OpmeterDataSource, elements: int, ranks: int) -> Any:
        args = (Tensor((elements,), "torch.float16"), 0, list(range(ranks)))
        return source.lookup(OpInvokeInfo("tensor_cast.all_reduce.default", args))

    known = merged([message(size, 2, 2, 5.0 * size) for size in (1024, 4096)])
    source = OpmeterDataSource(known, _mapping(), misses=log)
    assert reduce(source, 512, 2).latency_us == 5.0 * 1024
    between = reduce(source, 1024, 2)
    assert between.source is QuerySource.INTERPOLATED
    assert 5.0 * 1024 < between.latency_us < 5.0 * 4096
    requested = ((64, 2), (8192, 2), (1024, 16), (1, 2))
    assert [reduce(source, *one) for one in requested] == [None] * 4
    for ranks in (0, 1, 65):  # no group of the grid
        assert reduce(source, 1024, ranks) is None
    found = [collective_case_of(one.demand.record.case) for one in log.misses]
    assert {(one.collective.message_bytes, one.collective.group_size) for one in found} == {
        *((128, 2), (16384, 2), (2048, 16), (2, 2))
    }
    source = OpmeterDataSource(merged([recorded(one.record(), 9.0) for one in found]), _mapping())
    assert {reduce(source, *one).latency_us for one in requested} == {9.0}


def _mapping() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(MAPPING)
    return loaded
