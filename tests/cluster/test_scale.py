"""A fleet of 256 simulated nodes: the controller keeps up with the cluster, within its bounds."""

from pathlib import Path

import pytest

from tests.cluster.namespace import Namespace
from tests.cluster.scale import compare, is_as_fast

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_a_thousand_indexes_complete_as_fast_as_those_of_a_bare_job(
    fleet: Namespace, tmp_path: Path
):
    # Half a minute each on a shared machine: one pair of rates may be disturbed.
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        if is_as_fast(found := compare(fleet, folder, 1000, limit_s=600)):
            return
    raise AssertionError(f"four times: {found}")
