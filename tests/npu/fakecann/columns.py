"""The columns of an op_summary of msprof on A2 and A3, by version of CANN and aic_metrics."""

BLOCK_DIM = ("Block Dim", "Mix Block Dim")  # CANN 8.5.2 and before
BLOCK_NUM = ("Block Num", "Mix Block Num")  # CANN 9

_IDENTITY = (
    *("Device_id", "Model ID", "Task ID", "Stream ID", "Op Name", "OP Type", "OP State"),
    *("Task Type", "Task Start Time(us)", "Task Duration(us)", "Task Wait Time(us)"),
)
_SHAPES = (
    *("Input Shapes", "Input Data Types", "Input Formats"),
    *("Output Shapes", "Output Data Types", "Output Formats"),
)
_CUBE = ("aicore_time(us)", "aic_total_cycles")
_VECTOR = ("aiv_time(us)", "aiv_total_cycles")
_CACHE = (
    *("write_cache_hit", "write_cache_miss_allocate", "r0_read_cache_hit"),
    *("r0_read_cache_miss_allocate", "r1_read_cache_hit", "r1_read_cache_miss_allocate"),
)
_ACCESS = (
    *("read_main_memory_datas(KB)", "write_main_memory_datas(KB)", "GM_to_L1_datas(KB)"),
    *("L0C_to_L1_datas(KB)", "L0C_to_GM_datas(KB)", "GM_to_UB_datas(KB)", "UB_to_GM_datas(KB)"),
)


def _both(pieces: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(f"aic_{p}" for p in pieces), tuple(f"aiv_{p}" for p in pieces)


def _pipes(core: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{core}_{name}_{what}" for name in names for what in ("time(us)", "ratio"))


# aic_metrics -> (columns after the cube cores' two, columns after the vector cores' two).
_GROUPS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "PipeUtilization": (
        (*_pipes("aic", "mac", "scalar", "mte1", "mte2", "fixpipe"), "aic_icache_miss_rate"),
        (
            *_pipes("aiv", "vec", "scalar", "mte2", "mte3"),
            *("aiv_icache_miss_rate", "cube_utilization(%)"),
        ),
    ),
    "ArithmeticUtilization": (
        ("aic_mac_fp16_ratio", "aic_mac_int8_ratio", "aic_cube_fops"),
        (
            *("aiv_vec_fp32_ratio", "aiv_vec_fp16_ratio", "aiv_vec_int32_ratio"),
            *("aiv_vec_misc_ratio", "aiv_vector_fops"),
        ),
    ),
    "Memory": (
        (
            *("aic_l1_read_bw(GB/s)", "aic_l1_write_bw(GB/s)", "aic_main_mem_read_bw(GB/s)"),
            *("aic_main_mem_write_bw(GB/s)", "aic_l2_read_bw(GB/s)", "aic_l2_write_bw(GB/s)"),
        ),
        (
            *("aiv_ub_read_bw(GB/s)", "aiv_ub_write_bw(GB/s)", "aiv_main_mem_read_bw(GB/s)"),
            *("aiv_main_mem_write_bw(GB/s)", "aiv_l2_read_bw(GB/s)", "aiv_l2_write_bw(GB/s)"),
        ),
    ),
    "MemoryL0": (
        (
            *("aic_l0a_read_bw(GB/s)", "aic_l0a_write_bw(GB/s)", "aic_l0b_read_bw(GB/s)"),
            *("aic_l0b_write_bw(GB/s)", "aic_l0c_read_bw_cube(GB/s)"),
            "aic_l0c_write_bw_cube(GB/s)",
        ),
        ("aiv_l0c_read_bw(GB/s)", "aiv_l0c_write_bw(GB/s)"),
    ),
    "MemoryUB": (
        ("aic_ub_read_bw_scalar(GB/s)", "aic_ub_write_bw_scalar(GB/s)"),
        (
            *("aiv_ub_read_bw_vector(GB/s)", "aiv_ub_write_bw_vector(GB/s)"),
            *("aiv_ub_read_bw_scalar(GB/s)", "aiv_ub_write_bw_scalar(GB/s)"),
        ),
    ),
    "ResourceConflictRatio": (
        (),
        ("aiv_vec_bankgroup_cflt_ratio", "aiv_vec_bank_cflt_ratio", "aiv_vec_resc_cflt_ratio"),
    ),
    "L2Cache": _both(_CACHE),
    "MemoryAccess": _both(_ACCESS),
}
GROUPS = tuple(_GROUPS)


def counters(group: str) -> tuple[str, ...]:
    """Return the counters that a group of aic_metrics adds, in msprof's order."""
    cube, vector = _GROUPS[group]
    return (*_CUBE, *cube, *_VECTOR, *vector)


def summary_columns(group: str, block: tuple[str, str]) -> tuple[str, ...]:
    """Return the header of an op_summary."""
    return (*_IDENTITY, *block, "HF32 Eligible", *_SHAPES, "Context ID", *counters(group))
