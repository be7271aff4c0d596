"""Imports of what lives as long as its process."""

import gc
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
