"""Imports of modules that live as long as the process, and of modules to keep out of it."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def permanent() -> Iterator[None]:
    """Import modules that this process keeps to its end, and exempt their objects from garbage
    collection. Torch leaves half a million objects; collecting them during the import, in each full
    collection after it and at exit costs a quarter of the time of `import torch` and an exit."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _Unused:
    """A module finder that finds nothing and blocks pandas."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not used here", name=name)


def without_pandas() -> None:
    """Keep pandas out of this process, as if it were not installed. No code here uses it, but
    pyarrow imports it at the first list that it converts to an array, to check whether the list is
    a pandas series: that takes longer than most commands."""
    sys.meta_path.insert(0, _Unused())
