"""Imports of what lives as long as its process, and of what it does without."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def for_good() -> Iterator[None]:
    """Within it, import what this process keeps to its end: circles of references are looked for
    in it neither now nor ever. Torch leaves half a million objects, and looking through them while
    they are made, in each full collection after that and at the end costs a quarter of the time
    that `import torch` and an exit take."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _Unused:
    """Finds nothing, least of all pandas."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not used here", name=name)


def without_pandas() -> None:
    """Keep pandas out of this process, as if it were not installed. Nothing of ours uses it, but
    pyarrow, at the first list that it makes an array of, imports it to ask whether the list is one
    of its series: that takes longer than most commands."""
    sys.meta_path.insert(0, _Unused())
