"""The data source of msmodeling, against a stub of its interface: no msmodeling, no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from collector.codec.errors import BadInput
from collector.model.demand import read_misses
from collector.ops.refusals import refusal
from collector.ops.registry import find
from collector.ranks.collective import Collective, CollectiveCase, collective_case_of
from collector.ranks.topology import Grid
from jobs.planning.sources import completed_case
from opmeter.adapters.msmodeling import OpmeterDataSource
from opmeter.cases import Shape
from opmeter.misses import MissLog
from tests.unit.opmeter.made import Row, product, recorded, version_of

pytestmark = pytest.mark.fast


# As in msmodeling, tensor_cast/performance_model/profiling_database/data_source.py.


class QuerySource(Enum):
    MEASURED = 1
    INTERPOLATED = 2
    EXTRAPOLATED = 3
    PARTIAL = 4


@dataclass
class QueryResult:
    latency_us: float
    confidence: float
    source: QuerySource
    details: dict[str, Any] = field(default_factory=dict)
    shape_match_info: Any = None
    sub_kernel_shapes: Any = None


TYPES = SimpleNamespace(QuerySource=QuerySource, QueryResult=QueryResult)


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


VERSION = version_of(
    [
        product(16, 768, 5120, 10.0, sessions=2),
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
    return OpmeterDataSource(VERSION, tmp_path / "op_mapping.yaml", types=TYPES)


def mm(m: int, k: int, n: int, dtype: str = "torch.bfloat16") -> OpInvokeInfo:
    return OpInvokeInfo("aten.mm.default", (Tensor((m, k), dtype), Tensor((k, n), dtype)))


def test_lookup_has_latency_interval_and_source(
    source: OpmeterDataSource,
) -> None:
    found = source.lookup(mm(16, 5120, 768))
    assert isinstance(found, QueryResult)
    assert (found.latency_us, found.source) == (10.0, QuerySource.MEASURED)
    assert found.confidence == pytest.approx(0.95)  # the interval is 5 % to each side
    assert found.details["kernel_type"] == "MatMulV2" and found.details["channel"] == "pooled"
    between = source.lookup(mm(32, 5120, 768))
    assert between.source is QuerySource.INTERPOLATED and 10 < between.latency_us < 20
    assert between.confidence < found.confidence
    assert source.lookup(OpInvokeInfo("torch.ops.aten.view.default", ())).latency_us == 0.0


def test_without_a_mapping_the_declared_one_is_used() -> None:
    source = OpmeterDataSource(VERSION, types=TYPES)
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


def test_attention_is_looked_up_by_its_mean_length(source: OpmeterDataSource) -> None:
    def attend(*lengths: int) -> Any:
        key = Tensor((100, 128, 2, 128))
        args = (Tensor((4, 16, 128)), key, key, None, None, None, Lengths(lengths), None)
        return source.lookup(OpInvokeInfo("tensor_cast.attention.default", args))

    near = attend(1000, 1060)
    assert (near.latency_us, near.source) == (30.0, QuerySource.MEASURED)
    assert near.details["length_gap"] == 6.0
    assert attend(1030).latency_us == 50.0
    between = attend(2048, 2048)
    assert between.source is QuerySource.INTERPOLATED
    assert between.latency_us == pytest.approx((30 * 90) ** 0.5)
    assert between.details["low_us"] < 30 and between.details["high_us"] > 90
    assert attend(9000, 9000) is None and source.last_miss_reason == "shape_mismatch"


def test_miss_has_a_reason_is_counted_and_uses_the_fallback(tmp_path: Path) -> None:
    class Fallback:
        last_miss_reason = "csv_format_raw"

        def lookup(self, op_invoke_info: Any) -> Any:
            is_message = "all_reduce" in op_invoke_info.func
            return QueryResult(5.0, 0.8, QuerySource.MEASURED) if is_message else None

    (tmp_path / "op_mapping.yaml").write_text(MAPPING)
    log = MissLog(tmp_path / "misses.jsonl")
    source = OpmeterDataSource(VERSION, tmp_path / "op_mapping.yaml", types=TYPES, misses=log)
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
    source = OpmeterDataSource(VERSION, {**_plain()}, types=TYPES, fallback=Fallback())
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


@pytest.mark.parametrize("flat", [True, False])
def test_misses_of_attention_become_cases_that_can_be_measured(tmp_path: Path, flat: bool) -> None:
    known = paged(2, (20, 30), flat=flat)
    assert refusal(completed_case(known.record).case, find, "npu") is None
    log = MissLog(tmp_path / "misses.jsonl")

    def attend(rows: Sequence[Row], heads: int, *lengths: int) -> Any:
        key = Tensor((100, 128, heads, 16))
        args = (Tensor((len(lengths), 4, 16)), key, key, None, None, None, Lengths(lengths), None)
        source = OpmeterDataSource(version_of(rows), _mapping(), types=TYPES, misses=log)
        return source.lookup(OpInvokeInfo("tensor_cast.attention.default", args))

    # More keys than the table and the pool have, other numbers of requests, and unknown heads.
    requested = ((500, 100), (40,), (900, 1, 90))
    assert [attend([known], 2, *lengths) for lengths in requested] == [None] * 3
    assert attend([known], 4, 500, 100) is None
    found = [one.demand.record for one in log.misses]
    assert len(found) == 3 == len(log)
    for record in found:
        assert refusal(completed_case(record).case, find, "npu") is None
    measured = [recorded(record, 70.0) for record in found]
    for lengths in requested:
        result = attend([known, *measured], 2, *lengths)
        assert result.latency_us == 70.0
        assert result.details["length_gap"] == pytest.approx(0.0, abs=1e-5)


def test_misses_of_messages_become_cases_of_their_group(tmp_path: Path) -> None:
    grid = Grid((4, 8, 2))

    def message(size_bytes: int, group: int, tier: int) -> Row:
        one = Collective("all_reduce", size_bytes, "bfloat16", group, tier)
        return recorded(CollectiveCase(one, grid, 64, "kernel").record(), 5.0)

    log = MissLog(tmp_path / "misses.jsonl")

    def reduce(rows: Sequence[Row], elements: int, ranks: int) -> Any:
        args = (Tensor((elements,)), 0, list(range(ranks)))
        source = OpmeterDataSource(version_of(rows), _mapping(), types=TYPES, misses=log)
        return source.lookup(OpInvokeInfo("tensor_cast.all_reduce.default", args))

    known = [message(size, 2, 2) for size in (1024, 4096)]
    requested = ((64, 2), (8192, 2), (1024, 16), (1, 2))
    assert [reduce(known, *one) for one in requested] == [None] * 4
    for ranks in (0, 1, 65):  # no group of the grid
        assert reduce(known, 1024, ranks) is None
    found = [collective_case_of(one.demand.record.case) for one in log.misses]
    assert {(one.collective.message_bytes, one.collective.group_size) for one in found} == {
        *((128, 2), (16384, 2), (2048, 16), (2, 2))
    }
    measured = [recorded(one.record(), 9.0) for one in found]
    assert {reduce(measured, *one).latency_us for one in requested} == {9.0}


def _mapping() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(MAPPING)
    return loaded
