"""Spark filters the files of a database as pyarrow does in memory."""

import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collector.database.commits import read_commit
from collector.model import keys
from collector.store.file import FileStore
from tests.lacking import lacking
from tests.unit.collector.database.test_database_delta import (
    FILTERS,
    chosen,
    files_of,
    folder,
    rows_of,
)

__all__ = ["folder"]  # the fixture
_NAMES = ("device", "version", "case", "kernel_type", "mean_us")


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    try:
        sql = importlib.import_module("pyspark.sql")
    except ImportError:
        lacking("pip install '.[spark]'")
    if shutil.which("java") is None:
        lacking("apt-get install openjdk-17-jre-headless")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    session = sql.SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.mark.slow
def test_spark_filters_every_partition_and_type(folder: Path, spark: Any) -> None:
    """Of the newest version and of two older ones."""
    store = FileStore(folder)
    for number in (6, 4, 2):
        commit = read_commit(store, number)
        for root in (keys.MEASUREMENTS, keys.SHOWN):
            rows = rows_of(store, commit, root)
            files = [str(folder / key) for key in files_of(store, commit, root)]
            frame = spark.read.parquet(*files)
            assert frame.count() == rows.num_rows
            for name, (sign, value) in FILTERS.items():
                if name not in rows.column_names:
                    continue
                column = frame[name]
                found = frame.filter(column == value if sign == "=" else column > value)
                picked = sorted(map(tuple, found.select(*_NAMES).collect()), key=repr)
                assert picked == chosen(rows, name), (root, number, name)
