"""The published measurements with which the project's statistics are compared."""

import os
from pathlib import Path

import pytest

_VARIABLE = "OPMETER_TEST_TRUTH"


@pytest.fixture(scope="session")
def truth() -> Path:
    """The folder of published measurements; the test is skipped if there is none."""
    folder = os.environ.get(_VARIABLE)
    if not folder:
        pytest.skip(
            f"measurements by others are not part of the project: set {_VARIABLE} to a folder with "
            "repeats/{device}-{model}-mlp.csv (microsoft/vidur, data/profiling/compute) and "
            "again/*-first.parquet, again/*-again.parquet, gemm/*.parquet "
            "(ai-dynamo/aiconfigurator, gemm_perf)"
        )
    return Path(folder)
