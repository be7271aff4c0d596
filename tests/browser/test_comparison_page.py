"""The page of a comparison in a browser: drawn, searched, and with the values of its CSV."""

import csv
import math
from collections import Counter

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
    found = Counter(row["finding"] for row in rows)
    changed = [row for row in rows if row["finding"] == "changed"]
    before, after = (
        sum(float(row["launches"]) * float(row[name]) for row in rows)
        for name in ("before_us", "after_us")
    )
    for row in rows:
        assert math.isclose(float(row["ratio"]), float(row["after_us"]) / float(row["before_us"]))
    with shown(browser) as one:
        one.open(comparison / "index.html")
        tiles = [tile.inner_text().split("\n") for tile in one.page.query_selector_all(".fact dd")]
    counts = [int(tile[0]) for tile in tiles[:3]]
    assert counts == [found[name] for name in ("changed", "equal", "inconclusive")]
    slower = sum(float(row["ratio"]) > 1 for row in changed)
    assert f"{slower} slower, {len(changed) - slower} faster" in tiles[0][1]
    each = [sum(float(row[name]) for row in rows) for name in ("before_us", "after_us")]
    for tile, (early, late) in ((tiles[3], each), (tiles[5], (before, after))):
        share = float(tile[0].rstrip(" %").replace("−", "-"))
        assert math.isclose(share, 100 * (late / early - 1), abs_tol=0.06)
    assert any(row["kernel"] == "SwiGlu" and float(row["ratio"]) < 0.9 for row in changed)
