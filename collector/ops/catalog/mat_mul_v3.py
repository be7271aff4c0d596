"""Product of two matrices; the runtime chooses between this kernel and its siblings."""

from collector.ops.catalog._matmul import matmul

OP = matmul("MatMulV3")
