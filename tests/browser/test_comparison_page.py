"""The page of a comparison in a browser: drawn, searched, and with the values of its CSV."""

import csv
import math

import pytest

from tests.bench.varied_database import HOSTILE
from tests.browser.chromium import shown


@pytest.mark.parametrize("width", [1440, 400])
def test_comparison_is_drawn_and_searched(browser, comparison, width):
    with shown(browser, width=width) as one:
        one.open(comparison / "index.html")
        assert not one.is_wider_than_window()
        assert len(one.page.query_selector_all("figure svg.plot")) == 2
        assert one.blank_figures() == []
        assert HOSTILE in one.page.inner_text("#step")
        one.page.fill("#changes input", "swiglu")
        rows = one.page.query_selector_all("#changes tbody tr td:first-child")
        assert rows and {row.inner_text() for row in rows} == {"SwiGlu"}
        assert one.faults == []


def test_values_are_those_of_the_csv(browser, comparison):
    """Recompute the counts and the change of the step from the CSV of the page."""
    with (comparison / "index.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    changed = [row for row in rows if row["changed"] == "1"]
    before, after = (
        sum(float(row["launches"]) * float(row[name]) for row in rows)
        for name in ("before_us", "after_us")
    )
    for row in rows:
        assert math.isclose(float(row["ratio"]), float(row["after_us"]) / float(row["before_us"]))
    with shown(browser) as one:
        one.open(comparison / "index.html")
        tiles = [tile.inner_text().split("\n") for tile in one.page.query_selector_all(".fact dd")]
    assert int(tiles[0][0]) == len(changed)
    assert int(tiles[1][0]) == sum(float(row["ratio"]) > 1 for row in changed)
    step = float(tiles[4][0].rstrip(" %").replace("−", "-"))
    assert math.isclose(step, 100 * (after / before - 1), abs_tol=0.06)
    assert any(row["kernel"] == "SwiGlu" and float(row["ratio"]) < 0.9 for row in changed)
