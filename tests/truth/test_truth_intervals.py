"""The stated shares of intervals on real sessions, as their scripts judge them."""

import pandas as pd
import pytest

from tests.truth import again, repeats

pytestmark = pytest.mark.slow


def test_intervals_hold_second_sessions_of_stacks_that_were_not_fitted(truth):
    found = repeats.judge_halves(sorted((truth / "repeats").glob("*.csv")))
    assert found["is_met"], found


@pytest.fixture(scope="module")
def tables(truth):
    """One table, collected twice."""
    return tuple(
        pd.read_parquet(next((truth / "again").glob(f"*-{name}.parquet")))
        for name in ("first", "again")
    )


def test_intervals_hold_a_second_collection_of_a_table(tables):
    found = again.judge(*tables, repeats.UNKNOWING)
    assert found["is_met"], found


def test_intervals_hold_where_a_few_cases_alone_were_measured_again(tables):
    found = again.judge_blind(*tables, repeats.UNKNOWING)
    assert found["is_met"], found
