"""The weight of a case in the sources of a campaign."""

from dataclasses import replace

import pytest

from collector.database.layout import AVERAGE_DURATION
from collector.model.record import ProfileStatistics
from jobs.planning.candidates import Weight, weigh
from tests.unit.collector.database.campaign_maker import add_record

pytestmark = pytest.mark.fast


def test_weight_of_a_case_sums_its_invocations_over_all_sources() -> None:
    bare = add_record(1)
    profiled = replace(bare, profile=ProfileStatistics(3, 2.0, 2.0, 0.0))
    assert weigh([bare]) == Weight(rows=1, time_us=0.0, in_tree=False)
    assert weigh([profiled, bare, profiled]) == Weight(rows=7, time_us=12.0, in_tree=False)


@pytest.mark.parametrize(
    ("duration", "in_tree"),
    [("1.5", True), ("", False), ("0", False), ("-1", False), ("nan", False), ("inf", False)],
)
def test_tree_row_with_a_duration_needs_no_measurement(duration: str, in_tree: bool) -> None:
    row = replace(add_record(1), extra={AVERAGE_DURATION: duration})
    assert weigh([add_record(1), row]).in_tree is in_tree
