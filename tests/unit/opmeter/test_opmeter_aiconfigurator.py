"""The tables of AIConfigurator, from cases with known durations. `tests/stacks` gives them to
AIConfigurator itself."""

import pytest
import yaml

from collector.ranks.collective import Collective, CollectiveCase
from collector.ranks.topology import Grid
from opmeter.adapters.aiconfigurator import SCHEMAS, Experts, exported
from opmeter.version import Version
from tests.unit.opmeter.made import Row, merged, product, recorded

pytestmark = pytest.mark.fast

MODEL = Experts(choices=8, experts=128, intermediate=768)
ABSENT = [None] * 14  # slots of attention after query, key and value


def message(
    operation: str, size: int, group: int, mean_us: float, tier: int = 1, dtype: str = "bfloat16"
) -> Row:
    one = Collective(operation, size, dtype, group, tier)
    return recorded(CollectiveCase(one, Grid((4, 8, 2)), 64, "kernel").record(), mean_us)


def attention(tokens: int, lengths: str, of_queries: str, mean_us: float, *, paged: bool) -> Row:
    batch = len(of_queries.split(","))
    extra = {
        "Runtime actual_seq_lengths_values": of_queries,
        "Runtime actual_seq_lengths_kv_values": lengths,
        "Runtime num_key_value_heads": "2",
    }
    cache = (100, 128, 256) if paged else (tokens, 2, 128)
    inputs = [(tokens, 16, 128), cache, cache, *ABSENT[3:], (batch, 40) if paged else None]
    shapes = [(tokens, 16, 128)]
    return Row("FusedInferAttentionScore", inputs, shapes, mean_us, extra=extra)


def grouped(rows: int, depth: int, width: int, mean_us: float) -> Row:
    inputs = [(rows, depth), (8, depth, width)]
    warnings = "outliers;spread" if width == 1536 else ""
    return Row("GroupedMatmul", inputs, [(rows, width)], mean_us, warnings=warnings)


def version() -> Version:
    return merged(
        [
            product(16, 768, 5120, 10.0),
            Row("MatMulV3", [(16, 5120), (5120, 768)], [(16, 768)], 8.0, warnings="disturbed"),
            Row(
                "QuantBatchMatmulV3", [(4, 64), (64, 32), (32,)], [(4, 32)], 3.0, "INT8;INT8;FLOAT"
            ),
            product(16, 768, 5120, 11.0, dtype="FLOAT"),
            product(16, 768, 5120, 7.0, dtype="FLOAT16"),
            attention(4, "1024,1024,1024,1024", "1,2,3,4", 30.0, paged=True),
            attention(4, "1024,1024,1024,2048", "1,2,3,4", 40.0, paged=True),
            attention(512, "256,512", "256,512", 50.0, paged=False),
            grouped(64, 2048, 1536, 20.0),
            grouped(64, 768, 2048, 10.0),
            grouped(128, 768, 2048, 15.0),
            Row("SwiGlu", [(64, 1536)], [(64, 768)], 2.0, warnings="spread"),
            message("all_reduce", 4096, 2, 5.0),
            message("all_reduce", 4096, 2, 9.0, tier=0),
            message("all_gather", 4096, 8, 6.0),
            message("broadcast", 4096, 8, 6.0),
            message("all_reduce", 4096, 2, 4.0, dtype="int8"),
        ]
    )


def test_each_family_has_its_table_with_keys_and_milliseconds() -> None:
    found = exported(version(), MODEL)
    rows = {
        name: [list(row.values()) for row in table.to_pylist()]
        for name, table in found.tables.items()
    }
    who = ["VLLM", "0.18.0", "ATLAS_800_A3_752T_128G_DIE"]
    assert rows == {
        "gemm": [
            [*who, "gemm", "MatMulV3", "disturbed", "bfloat16", 16, 768, 5120, 0.008],
            [*who, "gemm", "QuantBatchMatmulV3", "", "sq", 4, 32, 64, 0.003],
        ],
        "generation_attention": [
            [
                *(*who, "generation_attention", "FusedInferAttentionScore", ""),
                *(4, 1, 16, 2, 128, 1, "bfloat16", "bfloat16", 1023, 0, 0.03),
            ]
        ],
        "context_attention": [
            [
                *(*who, "context_attention", "FusedInferAttentionScore", ""),
                *(2, 256, 16, 2, 128, 1, "bfloat16", "bfloat16", 0, 0, 0.05),
            ]
        ],
        # 64 rows on a rank with 8 of 128 experts: 1,024 rows on 16 ranks, 8 for each token.
        "moe": [
            [
                *(*who, "moe", "GroupedMatmul", "outliers;spread", "bfloat16"),
                *(128, 2048, 768, 8, 128, 1, 16, "balanced", 0.032),
            ]
        ],
        "nccl": [
            ["HCCL", "8.5", who[2], "all_reduce", "HCCL", "", "half", 2, 2048, 0.005],
            ["HCCL", "8.5", who[2], "all_reduce", "HCCL", "", "int8", 2, 4096, 0.004],
            ["HCCL", "8.5", who[2], "all_gather", "HCCL", "", "half", 8, 16384, 0.006],
        ],
        "custom_allreduce": [[*who, "all_reduce", "HCCL", "", "bfloat16", 2, 2048, 0.005]],
    }
    assert all(table.schema.equals(SCHEMAS[name]) for name, table in found.tables.items())
    assert found.left_out == {
        "attention: uneven lengths": 1,
        "gemm: another case of the same key is shorter": 1,
        "gemm: no dtype of AIConfigurator": 2,
        "moe: no product of gate and up, or no activation, for the same tokens": 1,
        "nccl: no name for broadcast of bfloat16": 1,
        "nccl: not of the nearest ranks": 1,
    }
    without = exported(version())
    assert "moe" not in without.tables and without.paths.keys() == without.tables.keys()


def test_the_folder_is_a_system_with_its_tables() -> None:
    device = "ATLAS_800_A3_752T_128G_DIE"
    found = exported(version(), MODEL)
    assert found.paths["gemm"] == f"data/{device}/gemm/vllm/0.18.0/gemm_perf.parquet"
    assert found.paths["nccl"] == f"data/{device}/comm/nccl/8.5/nccl_perf.parquet"
    folder = f"data/{device}/comm/vllm/0.18.0"
    assert found.paths["custom_allreduce"] == f"{folder}/custom_allreduce_perf.parquet"
    origin = yaml.safe_load(found.texts[f"{folder}/collection_meta.yaml"])
    assert origin["tables"].keys() == {"custom_allreduce_perf"}
    system = yaml.safe_load(found.texts[f"{device}.yaml"])
    assert system["data_dir"] == f"data/{device}" and system["misc"]["nccl_version"] == "8.5"
    assert system["gpu"]["mem_capacity"] == 64 * 2**30
    # The grid is 4 servers of 8 packages of 2 dies; 7 of 8 parts of all_gather cross each link.
    assert system["node"]["num_gpus_per_node"] == 16
    assert system["node"]["intra_node_bw"] == pytest.approx(7 * 4096 / 6e-6)
    assert system["node"]["inter_node_bw"] == pytest.approx(4096 / 9e-6)
    empty = exported(merged([Row("Add", [(8,)], [(8,)], 1.0)]))
    assert (empty.tables, empty.paths, empty.texts) == ({}, {}, {})
