"""The op_mapping.yaml that opmeter writes, by the rules of its consumer.

The rules and the vocabulary are those of Ascend/msmodeling at 84fec85: tests/benchmark/ops/
perf_database/test_op_mapping_schema.py, tensor_cast/ops (the registered operators), and `lookup`
of tensor_cast/performance_model/profiling_database/profiling_data_source.py.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from collector.codec.errors import BadInput
from collector.database.op_mapping import check_op_mapping
from collector.database.op_mapping_writing import (
    is_written,
    mapped_operators,
    write_mapping,
    written_mapping,
)
from collector.ops.registry import all_ops, lookups
from collector.ranks.collective import OPERATIONS
from collector.ranks.experts import KERNELS

NAME = "vllm0.18.0_torch2.9.0_cann8.5"
VERSION = f"ATLAS_800_A3_752T_128G_DIE/vllm_ascend/{NAME}"
EVERY_KERNEL = (*(op.kernel for op in all_ops()), *KERNELS)
FIXTURES = Path(__file__).parents[3] / "fixtures" / "op_mapping"
REGISTERED = frozenset((FIXTURES / "tensor_cast_operators.txt").read_text().split())
SPECIAL = frozenset({"attention_special", "elementwise", "moe_fused", "mtp_projection"})
FORMATS = ["ND", "FRACTAL_NZ"]


def mappings(data: bytes) -> dict[str, dict[str, Any]]:
    found = yaml.safe_load(data)["operator_mappings"]
    assert isinstance(found, dict)
    return found


def broken_rules(content: dict[str, Any], there: frozenset[str]) -> list[str]:
    """Return what the consumer's own tests would report for a file of a folder with these CSVs."""
    found = []
    for name, entry in content["operator_mappings"].items():
        named = [*entry.get("sub_kernels", ()), *entry.get("alternate_kernel_types", ())]
        named += [entry[key] for key in ("kernel_type", "primary_kernel_type") if key in entry]
        if entry.get("composite"):
            is_right = isinstance(entry.get("sub_kernels"), list) or entry.get("decomposer")
        elif entry.get("zero_cost"):
            is_right = not named
        else:
            is_right = "kernel_type" in entry and "sub_kernels" not in entry
        mode, count = entry.get("query_mode"), entry.get("tc_input_count")
        formats = entry.get("expected_input_formats")
        rules = {
            "one way to a duration": is_right,
            "a known mode": mode is None or mode in SPECIAL,
            "no counted inputs of an elementwise operator": mode != "elementwise" or count is None,
            "fused experts by their mode": mode == "moe_fused" or "dispatch_ffn" not in name,
            "sums by the output": mode == "elementwise" or name != "aten.add.Tensor",
            "formats of each input of a quantised product": formats is None
            or (len(formats) == count and entry["compute_subcategory"] == "quantized_matmul"),
            "a CSV of each kernel": all(k in there or k.startswith("hcom_") for k in named),
            "messages by the category": entry.get("category") == "communication"
            or not str(entry.get("kernel_type")).startswith("hcom_"),
            "a registered operator": not name.startswith("tensor_cast.")
            or name.split(".")[1] in REGISTERED,
        }
        found += [f"{name}: expected {rule}" for rule, holds in rules.items() if not holds]
    overrides = content.get("interpolation_policy", {}).get("kernel_overrides", {})
    if "ConcatD" in there and overrides["ConcatD"]["generic_compute"] != {"axis": "output_numel"}:
        found.append("ConcatD: expected output_numel")
    return found


def test_file_for_every_kernel_satisfies_the_consumer() -> None:
    data = written_mapping(EVERY_KERNEL, VERSION)
    content = yaml.safe_load(data)
    assert broken_rules(content, frozenset(EVERY_KERNEL)) == []
    check_op_mapping(data.decode(), path="op_mapping.yaml")
    assert content["communication_data_ref"] == "../../hccl/v8.5/"
    assert (content["version"], content["cann_version"]) == ("0.18.0", "8.5")
    found = content["operator_mappings"]
    assert found["aten.mm.default"] == {
        "kernel_type": "MatMulV2",
        "alternate_kernel_types": ["MatMulV3", "MatMulCommon", "MatMul"],
    }
    assert found["tensor_cast.static_quant_linear.default"]["expected_input_formats"] == FORMATS
    assert found["tensor_cast.all_to_all.default"]["kernel_type"] == "hcom_alltoallv_"
    assert found["tensor_cast.matmul_all_reduce.default"]["sub_kernels"][-1] == "hcom_allReduce_"
    assert found["tensor_cast.add_rms_norm.default"]["alternate_kernel_types"] == ["AddRmsNorm"]
    assert written_mapping(EVERY_KERNEL[::-1], VERSION) == data


def test_file_names_the_kernels_of_its_folder_only() -> None:
    there = frozenset({"MatMulV3", "AddAiCore", "LightningIndexerVllm", "RmsNormGrad"})
    content = yaml.safe_load(written_mapping(there))
    assert broken_rules(content, there) == []
    assert "communication_data_ref" not in content  # its collectives are next to it
    found = content["operator_mappings"]
    assert found["aten.mm.default"] == {"kernel_type": "MatMulV3"}
    assert found["aten.add.Tensor"]["kernel_type"] == "AddAiCore"
    indexer = found["tensor_cast.dsa_indexer.default"]
    assert indexer["primary_kernel_type"] == "LightningIndexerVllm"
    assert found["profiling.RmsNormGrad"] == {"kernel_type": "RmsNormGrad"}
    assert "tensor_cast.rms_norm.default" not in found
    assert [name for name in found if name.startswith("profiling.")] == ["profiling.RmsNormGrad"]


def test_kernels_of_one_operator_are_looked_up_by_the_same_settings() -> None:
    settings: dict[str, list[dict[str, Any]]] = {}
    for _, lookup in lookups():
        settings.setdefault(lookup.operator, []).append(dict(lookup.settings))
    differing = [name for name, found in settings.items() if any(one != found[0] for one in found)]
    assert differing == []
    assert mapped_operators("SparseFlashAttention")[0].startswith(
        "tensor_cast.mla_sparse_attention"
    )
    assert mapped_operators("RmsNormGrad") == ()


@pytest.mark.torch
def test_operators_of_torch_exist() -> None:
    import torch

    missing = []
    for name in mappings(written_mapping(EVERY_KERNEL)):
        library, _, rest = name.partition(".")
        if library in ("aten", "prims"):
            operator, _, overload = rest.partition(".")
            packet = getattr(getattr(torch.ops, library), operator, None)
            if not hasattr(packet, overload):
                missing.append(name)
    assert missing == []


def test_a_file_is_written_again_until_a_user_changes_it(tmp_path: Path) -> None:
    folder = tmp_path / VERSION
    (folder / "unknown_inputs").mkdir(parents=True)
    (folder / "unknown_inputs" / "Gelu.csv").touch()
    path = folder / "op_mapping.yaml"
    assert write_mapping(folder) and not path.exists()  # no kernel yet
    for kernel, operator in (("MatMulV2", "aten.mm.default"), ("Abs", "aten.abs.default")):
        (folder / f"{kernel}.csv").touch()
        assert write_mapping(folder)
        assert operator in mappings(path.read_bytes())
    assert "tensor_cast.gelu.default" not in mappings(path.read_bytes())
    written = path.read_bytes()
    assert is_written(written)
    for own in (written + b"# mine\n", written.replace(b"Abs", b"Neg"), b"a: 1\n", b""):
        path.write_bytes(own)
        (folder / "Neg.csv").touch()
        assert not write_mapping(folder)
        assert path.read_bytes() == own
    path.unlink()
    path.mkdir()
    with pytest.raises(BadInput) as refused:
        write_mapping(folder)
    assert refused.value.path == path


def test_collectives_have_the_names_that_the_consumer_reads() -> None:
    by_operator = {
        lookup.operator: one.file for one in OPERATIONS.values() for lookup in one.lookups
    }
    assert by_operator == {  # comm_bench/generate_comm_microbench.py
        "tensor_cast.all_reduce.default": "hcom_allReduce_.csv",
        "tensor_cast.all_gather.default": "hcom_allGather_.csv",
        "tensor_cast.reduce_scatter.default": "hcom_reduceScatter_.csv",
        "tensor_cast.all_to_all.default": "hcom_alltoallv_.csv",
    }
