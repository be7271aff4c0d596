"""The exported tables have the columns of published ones."""

from pathlib import Path

import pyarrow.parquet as pq

from opmeter.adapters.aiconfigurator import SCHEMAS


def test_products_have_the_columns_of_published_tables(truth: Path) -> None:
    for file in sorted(truth.glob("gemm/*.parquet")):
        known = pq.read_schema(file)
        assert (SCHEMAS["gemm"].names, SCHEMAS["gemm"].types) == (known.names, known.types)
