"""Spark filters the files of a database as pyarrow does in memory."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.slow
def test_spark_filters_every_partition_and_type(folder: Path, tmp_path: Path) -> None:
    """Of the newest version and of two older ones."""
    if importlib.util.find_spec("pyspark") is None:
        lacking("pip install '.[spark]'")
    if shutil.which("java") is None:
        lacking("apt-get install openjdk-17-jre-headless")
    store, requests, expected = FileStore(folder), [], []
    for number in (6, 4, 2):
        commit = read_commit(store, number)
        for root in (keys.MEASUREMENTS, keys.SHOWN):
            rows = rows_of(store, commit, root)
            filters = {name: one for name, one in FILTERS.items() if name in rows.column_names}
            files = [str(folder / key) for key in files_of(store, commit, root)]
            requests.append((files, [(name, *one) for name, one in filters.items()]))
            expected.append([chosen(rows, name) for name in filters])
    (tmp_path / "requests").write_text(json.dumps(requests))
    command = [sys.executable, "-m", "tests.unit.collector.database.spark_rows"]
    done = subprocess.run(
        [*command, str(tmp_path / "requests"), str(tmp_path / "found")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "found").read_text())
    assert [[sorted(map(tuple, rows), key=repr) for rows in one] for one in found] == expected
    assert all(rows for one in expected for rows in one)
