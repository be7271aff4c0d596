"""The stated coverage of intervals on real sessions, as judged by their scripts."""

import pandas as pd
import pytest

from tests.truth import again, repeats

pytestmark = pytest.mark.slow


def test_intervals_cover_second_sessions_of_unseen_stacks(truth):
    found = repeats.judge_halves(sorted((truth / "repeats").glob("*.csv")))
    assert found["is_met"], found


@pytest.fixture(scope="module")
def tables(truth):
    """One table, collected twice."""
    return tuple(
        pd.read_parquet(next((truth / "again").glob(f"*-{name}.parquet")))
        for name in ("first", "again")
    )


def test_intervals_cover_a_second_collection_of_a_table(tables):
    found = again.judge(*tables, repeats.UNKNOWING)
    assert found["is_met"], found


def test_intervals_cover_if_only_a_few_cases_were_measured_again(tables):
    found = again.judge_blind(*tables, repeats.UNKNOWING)
    assert found["is_met"], found
