"""The exported tables have the columns of published ones."""

from pathlib import Path

import pyarrow.parquet as pq

from opmeter.adapters.aiconfigurator import SCHEMAS


def test_products_have_the_columns_of_published_tables(truth: Path) -> None:
    for file in sorted(truth.glob("gemm/*.parquet")):
        known = pq.read_schema(file)
        own = [field for field in SCHEMAS["gemm"] if field.name != "warnings"]  # read by no loader
        assert [(one.name, one.type) for one in own] == [(one.name, one.type) for one in known]
