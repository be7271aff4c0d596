"""A drill: credentials of the store that change while pods have them mounted. It ends with a
complete, verified database. An unavailable or slow store: long/test_long_drill_store.py."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.cluster.drill import GOOD, SECRET, Drill

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]


def test_credentials_may_be_rotated_while_pods_run(drill: Drill):
    drill.launch()
    drill.wait_committed(2)
    with rotated(drill):
        drill.finish()
        assert set(drill.outcomes().values()) <= GOOD


@contextmanager
def rotated(drill: Drill) -> Iterator[None]:
    """The store accepts another key from now on, which the Secret and this machine's file hold."""
    old = drill.cluster.own.store
    new = replace(old, access_key="rotatedkey", secret_key="rotatedsecret1")
    old.stop()
    new.start()
    try:
        drill.namespace.make_secret(SECRET, drill.credentials(new))
        drill.write_credentials(new)
        yield
    finally:
        new.stop()
        old.start()
