"""When a session has to end for its memory: its own limit, and its container's."""

import pytest

from collector.host.space import GroupMemory
from collector.replay.memory_limits import too_much
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast

GIB = 1 << 30
FULL = GroupMemory(limit=10 * GIB, used=10 * GIB, inactive_file=GIB // 4, active_file=GIB // 4)
ROOMY = GroupMemory(limit=10 * GIB, used=10 * GIB, inactive_file=GIB, active_file=GIB // 4)


@pytest.mark.parametrize(
    ("held", "container", "at_once", "named"),
    [
        (5 * GIB, None, 1, ("5.00 GiB", "4 GiB")),
        (3 * GIB, None, 1, ()),
        (3 * GIB, ROOMY, 1, ()),  # cached files can be reclaimed
        (3 * GIB, FULL, 1, ()),  # the session is not the cause
        (3 * GIB, FULL, 2, ("3.00 GiB", "9.50 GiB", "10.00 GiB")),
        (2 * GIB, FULL, 2, ()),
    ],
)
def test_session_ends_over_its_memory_limit_or_if_its_container_is_full(
    held, container, at_once, named
):
    found = too_much(held, 4.0, container, at_once)
    assert names(found, *named) and bool(found) == bool(named)
