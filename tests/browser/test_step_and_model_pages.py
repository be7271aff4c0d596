"""The pages of a step, of a model and of configurations in a browser, with the values of their
CSVs."""

import csv
import json
import math
import shlex
from pathlib import Path

import pytest

from tests.bench.varied_database import HOSTILE
from tests.browser.chromium import shown
from tests.browser.models import LAYOUT, MEASURED, MODEL, STACK, write_made_model
from tests.browser.serving import write_made_serving
from tests.browser.steps import STEPS, made_step, write_made_step
from tests.unit.jobs.cli.in_process import invoked


@pytest.fixture(scope="module")
def step(made_folder):
    return write_made_step(made_folder)


@pytest.fixture(scope="module")
def model(made_folder):
    return write_made_model(made_folder)


def _rows(file):
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def _in_us(text):
    value, unit = text.split("\n")[0].split()
    return float(value) * {"µs": 1, "ms": 1e3, "s": 1e6}[unit]


@pytest.mark.parametrize("width", [1440, 400])
def test_step_is_drawn_and_searched(browser, step, width):
    with shown(browser, width=width) as one:
        one.open(step / "index.html")
        assert not one.is_wider_than_window()
        assert len(one.page.query_selector_all("figure svg.plot")) == 3
        assert one.blank_figures() == []
        assert HOSTILE in one.page.inner_text(".head")
        one.page.fill("#cases input", "swiglu")
        rows = one.page.query_selector_all("#cases tbody tr td:first-child")
        assert rows and {row.inner_text() for row in rows} == {"SwiGlu"}
        assert one.faults == []


def test_times_of_a_step_add_up_to_those_of_the_csv(browser, step):
    """The bar of the residual ends at the step; its kernels are those of the CSV."""
    rows = _rows(step / "index.csv")
    apart = sum(int(r["launches"]) * float(r["isolated_us"]) for r in rows if r["isolated_us"])
    in_situ = sum(float(row["in_situ_total_us"]) for row in rows)
    found = made_step()
    with shown(browser) as one:
        one.open(step / "index.html")
        tiles = [tile.inner_text() for tile in one.page.query_selector_all("dd")]
        causes = one.page.inner_text("#causes")
    assert math.isclose(_in_us(tiles[0]), found.parts.measured_us / STEPS, rel_tol=1e-3)
    assert math.isclose(_in_us(tiles[1]), in_situ / STEPS, rel_tol=1e-3)
    assert math.isclose(_in_us(tiles[3]), apart / STEPS, rel_tol=1e-3)
    assert math.isclose(sum(us for _, us in found.parts.parts), found.parts.measured_us)
    assert "waiting for other ranks" in causes


def test_time_of_a_pass_is_shown_with_its_parts(browser, model):
    passes = json.loads((model / "index.json").read_text())["passes"]
    with shown(browser) as one:
        one.open(model / "index.html")
        headline = one.page.inner_text("dl")
        sections = [one.page.inner_text(f"#pass-{at}") for at in (1, 2)]
        assert one.faults == []
    for found, section, metric in zip(passes, sections, ("TTFT", "TPOT"), strict=True):
        time = found["simulated"]
        assert metric in headline and f"{metric}: " in section
        assert math.isclose(sum(time["parts"].values()), time["time_us"], rel_tol=1e-9)
        assert time["low_us"] < time["time_us"] < time["high_us"]
        assert "assumed: one stream" in section


@pytest.mark.parametrize("width", [1440, 400])
def test_model_is_drawn_by_pass(browser, model, width):
    with shown(browser, width=width) as one:
        one.open(model / "index.html")
        assert not one.is_wider_than_window()
        assert len(one.page.query_selector_all("figure svg.plot")) == 4
        assert one.blank_figures() == []
        one.page.fill("#pass-1 input", "estimated")
        kernels = one.page.query_selector_all("#pass-1 .launches tbody td:nth-child(2)")
        assert kernels and not {one.inner_text() for one in kernels} & set(MEASURED)
        assert one.faults == []


def test_pass_begins_with_its_kernels_and_what_to_measure_next(
    browser, model, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    rows = [row for row in _rows(model / "index.csv") if row["phase"] == "decode"]
    with shown(browser) as one:
        one.open(model / "index.html")
        table = one.page.locator("#pass-2 .slow tbody tr")
        shares = dict(row.locator("td").all_inner_texts()[:2] for row in table.all())
        command = one.page.locator("#pass-2 .slow code").inner_text()
    whole = sum(float(row["total_us"]) for row in rows)
    of_kernel = sum(float(r["total_us"]) for r in rows if r["kernel"] == MEASURED[0])
    assert math.isclose(
        float(shares[MEASURED[0]].rstrip(" %")), 100 * of_kernel / whole, abs_tol=0.6
    )
    words = shlex.split(command)
    assert words[:2] == ["opmeter", "step"] and invoked(*words[1:]).exit_code == 0
    assert Path("to-measure.jsonl").read_text()


def test_model_on_a_device_without_a_database_is_a_range(browser, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = (MODEL, "--layout", LAYOUT, "--device", STACK.device)
    assert invoked("report", "model", *words, "-o", "model").exit_code == 0
    (step,) = json.loads(invoked("step", *words, "--json").stdout)["passes"]
    decode = json.loads(Path("model/index.json").read_text())["passes"][1]["simulated"]
    for name in ("time_us", "low_us", "high_us"):
        assert math.isclose(decode[name], step[name], rel_tol=1e-9)
    with shown(browser) as one:
        one.open(tmp_path / "model/index.html")
        head, tiles = one.page.inner_text(".head"), one.page.locator("dd").all_inner_texts()
        command = one.page.locator("#pass-2 .slow code").inner_text()
        assert one.blank_figures() == one.faults == []
    assert STACK.device in head and "nothing is measured" in head
    assert math.isclose(_in_us(tiles[3]), step["time_us"], rel_tol=1e-3)
    assert tiles[5].startswith("0.0 %")
    assert invoked(*shlex.split(command)[1:]).exit_code == 0
    assert Path("to-measure.jsonl").read_text()


@pytest.mark.parametrize("width", [1440, 400])
def test_configurations_are_drawn_with_their_front(browser, made_folder, width):
    page = write_made_serving(made_folder)
    rows = _rows(page / "index.csv")
    with shown(browser, width=width) as one:
        one.open(page / "index.html")
        assert not one.is_wider_than_window()
        assert one.blank_figures() == one.faults == []
        cells = one.page.query_selector_all("#configurations tbody td:last-child")
        tiles = [tile.inner_text() for tile in one.page.query_selector_all("dd")]
        assert [cell.inner_text() for cell in cells] == [r["front"] or r["refused"] for r in rows]
        assert tiles[0].startswith(str(len(rows)))
        assert tiles[1].startswith(str(sum(row["front"] == "yes" for row in rows)))


def test_times_of_a_model_are_those_of_the_csv(browser, model):
    rows = _rows(model / "index.csv")
    with shown(browser) as one:
        one.open(model / "index.html")
        tiles = [tile.inner_text() for tile in one.page.query_selector_all("dd")]
        headline = one.page.inner_text("dl")
    assert "estimated time of the kernels" in headline
    for at, phase in enumerate(("prefill", "decode")):
        own = [row for row in rows if row["phase"] == phase]
        each = [float(row["value_us"] or row["estimate_us"] or 0) for row in own]
        whole = sum(int(r["launches"]) * us for r, us in zip(own, each, strict=True))
        known = sum(int(r["launches"]) * float(r["value_us"]) for r in own if r["value_us"])
        assert math.isclose(_in_us(tiles[3 * at + 1]), whole, rel_tol=1e-3)
        share = float(tiles[3 * at + 2].split("\n")[0].rstrip(" %"))
        assert 80 < share < 100 and math.isclose(share, 100 * known / whole, abs_tol=0.6)
        assert {row["kernel"] for row in own if row["value_us"]} == set(MEASURED)
