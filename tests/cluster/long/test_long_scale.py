"""Ten waves of a thousand indexes on 256 simulated nodes."""

from pathlib import Path

import pytest

from tests.cluster.namespace import Namespace
from tests.cluster.scale import compare, is_as_fast

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_ten_thousand_indexes_complete_as_fast_as_those_of_a_bare_job(
    fleet: Namespace, tmp_path: Path
):
    found = compare(fleet, tmp_path, 10_000, limit_s=3600)
    assert is_as_fast(found), found
