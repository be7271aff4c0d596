"""Caches of values that follow from bytes alone: in a simulation the same plan, part, campaign and
version are read hundreds of times by every process, which took most of its time.

Each function returns an immutable value, or raises its error again. The bytes still come from the
simulated store at every read, and are compared with their hashes there.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any
from unittest.mock import patch

from collector.codec import document
from collector.database import commits, manifest, plan_state, plans
from collector.worker import __main__ as worker
from tests.attack.simulation.remembered_tables import Tables

_OF_BYTES: tuple[tuple[Any, str], ...] = (
    (commits, "commit_from_json"),
    (document, "read_node"),
    (manifest, "snapshot_manifest_from_json"),
    (plan_state, "read_shard"),
    (plan_state, "rows_of_part"),
    (plans, "plan_from_json"),
    (worker, "_parser"),  # of nothing: a real worker is a separate process
)
_MOST = 512  # values of each, of some kilobytes


@contextmanager
def remembering() -> Iterator[None]:
    """Let the code under test use these caches."""
    with ExitStack() as patches:
        for where, name in _OF_BYTES:
            known = lru_cache(_MOST)(getattr(where, name))
            patches.enter_context(patch.object(where, name, known))
        for where, name, known in Tables().known():
            patches.enter_context(patch.object(where, name, known))
        yield
