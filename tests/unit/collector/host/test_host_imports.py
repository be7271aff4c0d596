"""Permanent imports are excluded from every later garbage collection."""

import gc
import subprocess
import sys

import pytest

from collector.host import imports


@pytest.mark.fast
def test_objects_made_within_are_excluded_from_garbage_collection():
    try:
        with imports.permanent():
            assert not gc.isenabled()
            kept: list[object] = []
            kept.append(kept)
        assert gc.isenabled()
        later: list[object] = []
        assert not any(known is kept for known in gc.get_objects())
        assert any(known is later for known in gc.get_objects())
    finally:
        gc.unfreeze()


@pytest.mark.fast
def test_failed_import_leaves_garbage_collection_enabled():
    try:
        with pytest.raises(ModuleNotFoundError), imports.permanent():
            import no_such_module  # noqa: F401
        assert gc.isenabled()
    finally:
        gc.unfreeze()


def test_pyarrow_makes_its_arrays_without_pandas():
    code = (
        "import sys; from collector.host.imports import without_pandas; without_pandas()\n"
        "import pyarrow, pyarrow.parquet\n"
        "table = pyarrow.table({'a': [1, None], 'b': pyarrow.array(['x', 'y'])})\n"
        "print(table.to_pylist(), 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[{'a': 1, 'b': 'x'}, {'a': None, 'b': 'y'}] False"
