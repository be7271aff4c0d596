"""A small tree in msmodeling's layout, as another tool would have written it."""

from collections.abc import Mapping
from pathlib import Path

from collector.model.stack import Stack

PATH = "ATLAS_800_A3_752T_128G_DIE/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5"
FOLDER_OF_RANKS = "ATLAS_800_A3_752T_128G_DIE/hccl/v8.5"
# The stack of measurements of the same version directory.
STACK = Stack(
    device="ATLAS_800_A3_752T_128G_DIE",
    torch="2.9.0",
    torch_npu="2.9.0",
    cann="8.5",
    vllm="0.18.0",
    driver="25.5",
)
_COLUMNS = (
    "OP State,Accelerator Core,Input Shapes,Input Data Types,Input Formats,Output Shapes,"
    "Output Data Types,Output Formats,Average Duration(us),Profiling Average Duration(us)"
)
_RANKS = "message_bytes,num_devices,dtype,topology_tier,Duration(us),bandwidth_gbps"


def add_row(rows: int, average: str, profiled: str = "") -> str:
    """Return the row of `rows x 64 + rows x 64`: the case of `campaign_maker.add_record`."""
    shape = f"{rows},64"
    inputs, cells = f'"""{shape};{shape}"""', "DT_BF16;DT_BF16,ND;ND"
    known = f'dynamic,AI_VECTOR_CORE,{inputs},{cells},"""{shape}""",DT_BF16,ND'
    return f"{known},{average},{profiled}"


def write_tree(root: Path, adds: Mapping[int, str], messages: Mapping[int, str]) -> Path:
    """Write the durations of additions by their rows, and of messages by their bytes."""
    version, ranks = root / PATH, root / FOLDER_OF_RANKS
    for folder in (version, ranks):
        folder.mkdir(parents=True, exist_ok=True)
    rows = [_COLUMNS, *(add_row(count, text) for count, text in adds.items())]
    (version / "Add.csv").write_text("\r\n".join(rows) + "\r\n")
    lines = [_RANKS, *(f"{size},16,DT_BF16,1,{text},1.0" for size, text in messages.items())]
    (ranks / "hcom_allReduce_.csv").write_text("\n".join(lines) + "\n")
    return root
