"""The stated shares of intervals on real sessions, as their scripts judge them."""

import pandas as pd
import pytest

from tests.truth import again, repeats

pytestmark = pytest.mark.slow


def test_intervals_hold_second_sessions_of_stacks_that_were_not_fitted(truth):
    found = repeats.judge_halves(sorted((truth / "repeats").glob("*.csv")))
    assert found["is_met"], found


def test_intervals_hold_a_second_collection_of_a_table(truth):
    first, second = (
        pd.read_parquet(next((truth / "again").glob(f"*-{name}.parquet")))
        for name in ("first", "again")
    )
    found = again.judge(first, second, repeats.UNKNOWING, blind=False)
    assert found["is_met"], found
