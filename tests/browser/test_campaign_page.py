"""The page of a campaign in a browser: its timeline, its devices, and what failed."""

import csv
import json
import math
import re

import pytest

from collector.report.campaign_pages import write_campaign
from collector.report.pages import Folder
from collector.store.opening import open_store
from jobs.cli.report import campaign_report_command
from jobs.status.timeline import CampaignReader
from jobs.status.why import ClusterView
from tests.bench.varied_database import HOSTILE
from tests.browser.campaigns import write_made_campaign
from tests.browser.chromium import shown

DEVICES, SHARDS_EACH, CASES = 20, 3, 6


@pytest.fixture(scope="module")
def root(made_folder):
    return write_made_campaign(made_folder, DEVICES, SHARDS_EACH, CASES, is_open=True)


@pytest.fixture(scope="module")
def campaign(made_folder, root):
    target = made_folder / "campaign-page"
    campaign_report_command("made", output=target, root=str(root))
    return target


@pytest.mark.parametrize("width", [1440, 400])
def test_campaign_is_drawn_without_errors(browser, campaign, width):
    with shown(browser, width=width) as one:
        one.open(campaign / "index.html")
        assert not one.is_wider_than_window()
        assert len(one.page.query_selector_all("figure svg.plot")) == 4
        assert one.blank_figures() == []
        assert HOSTILE in one.page.inner_text("#failures")
        assert "node-001: 3" in one.page.inner_text("#devices")
        assert one.faults == []


def test_timeline_is_filtered_and_a_session_opens_by_key_and_by_pointer(browser, campaign):
    with shown(browser) as one:
        one.open(campaign / "index.html")
        one.page.fill("#timeline input", "SN0003")
        one.page.wait_for_selector("#timeline details[open]")
        names = one.page.query_selector_all("#timeline details tbody button")
        assert names and {name.inner_text() for name in names} == {"node-000 SN0003"}
        names[0].focus()
        one.page.keyboard.press("Enter")
        one.page.wait_for_selector("dialog figure svg.plot")
        assert len(one.page.query_selector_all("dialog tbody tr")) == CASES
        one.page.keyboard.press("Escape")
        one.page.wait_for_selector("dialog", state="detached")
        chart = one.page.query_selector('figure svg[aria-label="Sessions of each device"]')
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        one.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 12)
        assert "SN0003" in one.page.inner_text("#timeline > p[role=status]")
        one.page.mouse.click(box["x"] + box["width"] * 0.3, box["y"] + 12)
        one.page.wait_for_selector("dialog figure svg.plot")
        assert one.faults == []


def test_log_of_a_failure_is_loaded_on_demand(browser, campaign):
    with shown(browser) as one:
        one.open(campaign / "index.html")
        assert not any("/logs/" in url for url in one.addresses)
        one.page.click("#failures tbody button")
        one.page.wait_for_selector("dialog pre")
        assert "measuring shard-" in one.page.inner_text("dialog pre")
        assert one.page.query_selector_all("dialog img") == []
        assert one.faults == []


def test_values_are_those_of_the_csv(browser, campaign):
    """Recompute the tiles from the CSV of the sessions."""
    with (campaign / "index.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    wall_s, busy_s, useful_s = (
        sum(float(row[name]) for row in rows) for name in ("wall_s", "busy_s", "useful_s")
    )
    cases = sum(int(row["cases"]) for row in rows)
    without = cases - sum(int(row["measured"]) for row in rows)
    first_s = min(
        float(row["began_s"]) - float(row["starting_s"]) - float(row["lost_s"]) for row in rows
    )
    last_s = max(float(row["ended_s"]) + float(row["export_s"]) for row in rows)
    with shown(browser) as one:
        one.open(campaign / "index.html")
        tiles = [tile.inner_text().split("\n")[0] for tile in one.page.query_selector_all("dd")]
    assert int(tiles[0]) == cases - without and int(tiles[1]) == DEVICES
    assert math.isclose(
        float(re.sub("[^0-9.]", "", tiles[2])), (last_s - first_s) / 60, abs_tol=0.1
    )
    assert math.isclose(float(tiles[3].rstrip(" %")), 100 * busy_s / wall_s, abs_tol=0.6)
    assert math.isclose(float(tiles[4].rstrip(" %")), 100 * useful_s / wall_s, abs_tol=0.6)
    assert int(tiles[5]) == without > 0
    efficiency = json.loads((campaign / "index.json").read_text())["efficiency"]
    whole = efficiency.pop("whole")
    assert math.isclose(sum(efficiency.values()), whole) and math.isclose(whole, wall_s)


def test_reloaded_page_keeps_its_selection(browser, root, made_folder, campaign):
    """Only a page that `--watch` writes does so."""
    assert 'data-reload=""' in (campaign / "index.html").read_text()
    source = CampaignReader(open_store(str(root)), "made", ClusterView("made", None)).read()
    with Folder(made_folder / "reloading") as folder:
        write_campaign(folder, source, 1)
    with shown(browser) as one:
        one.open(made_folder / "reloading/index.html")
        with one.page.expect_navigation():  # by itself
            one.page.fill("#timeline input", "SN0003")
        one.page.wait_for_selector("html[data-ready]", state="attached")
        assert one.page.input_value("#timeline input") == "SN0003"
        names = one.page.query_selector_all("#timeline details tbody button")
        assert {name.inner_text() for name in names} == {"node-000 SN0003"}
        assert one.faults == []
