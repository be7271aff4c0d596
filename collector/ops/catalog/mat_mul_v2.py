"""Product of two matrices; the runtime chooses among three kernels."""

from collector.ops.catalog._matmul import matmul

OP = matmul("MatMulV2", twins=("MatMulV3", "MatMulCommon"))
