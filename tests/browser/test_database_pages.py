"""The pages of a database in a browser: drawn, searched, linked, narrow, and safe."""

import csv
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest

from collector.database.commits import find_head
from collector.database.snapshot import load_state
from collector.database.state import State
from collector.database.view import render
from collector.store.opening import open_store
from tests.bench.varied_database import HOSTILE, HOSTILE_KERNEL
from tests.browser.chromium import Shown, shown
from tests.browser.reports import COVERAGE, write_report

_PRODUCT, _ATTENTION = "kernels/MatMulV2.html", "kernels/FusedInferAttentionScore.html"


def _hostile(report: Path) -> str:
    (found,) = (path for path in (report / "kernels").glob("Evil*.html"))
    return f"kernels/{found.name}"


def _number(text: str) -> float:
    return float(re.sub(r"[^0-9.eE+-]", "", text.replace("–", "")))


@pytest.mark.parametrize("width", [1440, 400])
def test_every_kind_of_page_is_drawn_without_errors(browser, report, width):
    with_plots = ("index.html", _PRODUCT, _ATTENTION, "kernels/MemSet.html")
    for name in (*with_plots, _hostile(report)):  # the cases of the last have no sizes
        with shown(browser, width=width) as one:
            one.open(report / name)
            assert not one.is_wider_than_window(), name
            assert bool(one.page.query_selector_all("figure svg.plot")) == (name in with_plots)
            assert one.blank_figures() == [], name
            assert one.faults == [], name
            assert all(url.startswith(report.as_uri()) for url in one.addresses), one.addresses


def test_first_page_is_small(report):
    html = (report / "index.html").read_text()
    names = re.findall(r'(?:src|href)="(?!data:)([^"]+)"', html)
    assert sum((report / name).stat().st_size for name in ["index.html", *names]) < 2e6


def test_kernels_are_searched_sorted_and_linked(browser, report):
    with shown(browser) as one:
        one.open(report / "index.html")
        rows = "#kernels tbody tr"
        whole = len(one.page.query_selector_all(rows))
        one.page.keyboard.press("/")
        one.page.keyboard.type("matmul")
        assert 0 < len(one.page.query_selector_all(rows)) < whole
        one.page.fill("#kernels input", "")
        one.page.click("#kernels th button:has-text('median duration')")
        texts = [
            cell.inner_text() for cell in one.page.query_selector_all(f"{rows} td:nth-child(7)")
        ]
        numbers = [_number(text) for text in texts if text != "–"]
        assert numbers == sorted(numbers, reverse=True) and len(numbers) > 5
        one.page.click(f"{rows} a:has-text('SwiGlu')")
        one.page.wait_for_selector("h1:has-text('SwiGlu')")
        one.page.click("text=overview")
        one.page.wait_for_selector("#kernels")
        assert one.faults == []


def test_certificate_opens_by_row_by_point_and_by_address(browser, report):
    with shown(browser) as one:
        one.open(report / _PRODUCT)
        one.page.click("#cases tbody tr:nth-child(3) button")
        one.page.wait_for_selector("dialog details")
        case = one.page.evaluate("location.hash").removeprefix("#")
        assert case in one.page.inner_text("dialog")
        assert one.page.query_selector_all("dialog figure svg")
        link = one.page.query_selector("dialog details a")
        assert link.get_attribute("href").startswith("file:///")
        one.page.keyboard.press("Escape")
        one.page.wait_for_selector("dialog", state="detached")
        _click_a_point(one)
        one.page.wait_for_selector("dialog details")
        one.open(report / _PRODUCT, f"#{case}")
        one.page.reload()
        one.page.wait_for_selector(f"dialog:has-text('{case}')")
        one.open(report / _PRODUCT, "#%")
        one.page.reload()
        one.page.wait_for_selector("#cases tbody tr")
        assert one.faults == []


def _click_a_point(one: Shown) -> None:
    point = one.page.query_selector("figure svg [aria-label=dot] circle:nth-child(5)")
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    one.page.mouse.move(box["x"] + 1, box["y"] + 1)
    one.page.mouse.click(box["x"] + 2, box["y"] + 2)


def test_warnings_are_loaded_on_demand_and_link_to_their_case(browser, report):
    with shown(browser) as one:
        one.open(report / "index.html")
        assert not any("warnings.data.js" in url for url in one.addresses)
        one.page.click("#warning-rows summary")
        one.page.wait_for_selector("#warning-rows tbody a")
        one.page.click("#warning-rows tbody a")
        one.page.wait_for_selector("dialog details")
        assert one.faults == []


def test_first_section_says_what_is_slow_and_what_to_do_next(browser, report):
    with shown(browser) as one:
        one.open(report / "index.html")
        assert one.page.locator("section").first.get_attribute("id") == "slow"
        rows = one.page.locator("#slow tbody tr")
        assert rows.count() == 2 and rows.first.inner_text().startswith("MatMulV2")
        commands = one.page.locator("#slow code").all_inner_texts()
        assert commands[0] == "opmeter coverage --model qwen3-32b --missing to-measure"
        assert commands[1].endswith("/MatMulV2.csv") and "opmeter measure" in commands[1]
        assert one.faults == []


def test_disturbed_sessions_are_not_denied(browser, report, tmp_path):
    copied = tmp_path / "report"
    shutil.copytree(report, copied)
    shown_texts = []
    for sessions in (50, 0):
        for name in ("index.html", "index.data.js", "index.json"):
            if (copied / name).exists():
                text = (report / name).read_text()
                several = f'"of_several_sessions":{sessions}'
                text = re.sub(r'"of_several_sessions": ?\d+', several, text)
                text = re.sub(r'"reliability": ?\[.*?\]', '"reliability":[]', text)
                text = re.sub(r'"(sessions|devices)": ?\{[^}]*\}', r'"\1":null', text)
                (copied / name).write_text(text)
        with shown(browser) as one:
            one.open(copied / "index.html")
            shown_texts.append(one.page.inner_text("#quality"))
    disturbed, alone = shown_texts
    assert disturbed.count("two sessions without disturbance") == 2
    assert "second session" not in disturbed and "No case has two sessions" not in disturbed
    assert "No case has a second session" in alone and "No case has two sessions" in alone


def test_kernels_that_a_workload_has_no_measured_case_of_have_no_width(
    browser, report, made_folder
):
    kernels = [
        {**one, "statuses": {"outside": 1.0}, "half_width": None} for one in COVERAGE.kernels
    ]
    root, target = made_folder / "made-600", made_folder / "uncovered"
    write_report(root, target, coverage=replace(COVERAGE, kernels=kernels))
    with shown(browser) as one:
        one.open(target / "index.html")
        for row in one.page.locator("#slow tbody tr").all():
            assert [text.strip() for text in row.locator("td").all_inner_texts()[2:4]] == ["–", "–"]
        (command,) = one.page.locator("#slow code").all_inner_texts()
        assert command.startswith("opmeter coverage")
        assert one.faults == []


def test_text_from_data_is_escaped(browser, report):
    with shown(browser) as one:
        one.open(report / "index.html")
        assert HOSTILE_KERNEL in one.page.inner_text("#kernels")
        assert "<b>decode</b>" in one.page.inner_text("#coverage")
        one.open(report / _hostile(report))
        assert one.page.inner_text("h1") == HOSTILE_KERNEL
        kernels = json.loads((report / "index.json").read_text())["kernels"]
        failed = next(kernel["stem"] for kernel in kernels if kernel["without"])
        one.open(report / f"kernels/{failed}.html")
        assert HOSTILE in one.page.inner_text("#failures")
        assert one.page.query_selector_all("#page img, #page script, #page b") == []
        assert one.faults == []
        # A script in the page is not run.
        one.page.evaluate(
            "document.body.append(Object.assign(document.createElement('script'),"
            "{textContent: 'window.ran = 1'}))"
        )
        assert one.page.evaluate("window.ran") is None
        assert any("Content Security Policy" in text for text in one.faults)


def test_labels_are_chinese_and_the_scheme_is_dark(browser, chinese_report):
    with shown(browser) as light, shown(browser, scheme="dark") as dark:
        for one in (light, dark):
            one.open(chinese_report / _PRODUCT)
            assert "耗时与尺寸" in one.page.inner_text("main")
        ground = "getComputedStyle(document.body).backgroundColor"
        assert light.page.evaluate(ground) != dark.page.evaluate(ground)
        assert light.faults == dark.faults == []


def test_every_label_has_a_chinese_translation():
    assets = Path(__file__).parents[2] / "collector/report/assets"
    known = set(re.findall(r'^  "((?:[^"\\]|\\.)+)":', (assets / "labels.js").read_text(), re.M))
    for script in assets.glob("*.js"):
        if script.name.endswith(".min.js") or script.name == "labels.js":
            continue
        used = set(re.findall(r'(?<![.\w])t\("([^"]+)"\)', script.read_text()))
        assert used - known == set(), script.name


def test_values_are_those_of_the_csvs_of_the_tree(browser, report, made_folder):
    """Recompute what three pages show from the CSVs that consumers read."""
    tree = render(_without_hostile(made_folder / "made-600"))
    with shown(browser) as one:
        one.open(report / "index.html")
        listed = {
            row.query_selector("td").inner_text(): [
                cell.inner_text() for cell in row.query_selector_all("td")
            ]
            for row in one.page.query_selector_all("#kernels tbody tr")
        }
        half_widths = []
        for path, file in tree.items():
            rows = _measured(file.data) if path.endswith(".csv") else []
            half_widths += [row[2] / row[0] - 1 for row in rows]
            name = Path(path).stem
            if rows:
                assert int(listed[name][2]) == len(rows)
                assert int(listed[name][4]) == sum(bool(row[3]) for row in rows)
                assert math.isclose(
                    _number(listed[name][6]), _median([r[0] for r in rows]), rel_tol=1e-3
                )
        hostile = int(listed[HOSTILE_KERNEL][2])
        whole = sum(map(len, map(_measured, _csvs(tree)))) + hostile
        assert one.page.inner_text(".fact:first-child dd").split("\n")[0] == str(whole)
        shown_width = _number(one.page.inner_text(".fact:nth-child(3) dd").split("\n")[0])
        assert math.isclose(shown_width, 100 * _median(half_widths), abs_tol=0.06)
        for page, name in ((_PRODUCT, "MatMulV2"), (_ATTENTION, "FusedInferAttentionScore")):
            one.open(report / page)
            (file,) = (f for path, f in tree.items() if Path(path).stem == name)
            by_shapes = sorted((row[4], row[0]) for row in _measured(file.data))
            data = json.loads((report / page.replace(".html", ".json")).read_text())
            columns = data["columns"]
            found = sorted(zip(columns["shapes"], columns["mean_us"], strict=True))
            assert [shapes for shapes, _ in found] == [shapes for shapes, _ in by_shapes]
            for (_, mean_us), (_, expected_us) in zip(found, by_shapes, strict=True):
                assert math.isclose(mean_us, expected_us, rel_tol=1e-5)
            cell = one.page.inner_text("#cases tbody tr:first-child td.number")
            assert math.isclose(_number(cell), columns["mean_us"][0], rel_tol=1e-3)


def _without_hostile(root: Path) -> State:
    """Return the state without the cases that no tree can have."""
    store = open_store(str(root))
    state = load_state(store, find_head(store))
    tables = (
        table.filter(pc.not_equal(table["kernel_type"], HOSTILE_KERNEL))
        for table in (state.measurements, state.cases)
    )
    measurements, cases = tables
    return replace(state, measurements=measurements, cases=cases)


def _csvs(tree):
    return [file.data for path, file in tree.items() if path.endswith(".csv")]


def _measured(data: bytes) -> list[tuple[float, float, float, str, str]]:
    return [
        (
            float(row["Average Duration(us)"]),
            float(row["MicroBench Stack Low(us)"]),
            float(row["MicroBench Stack High(us)"]),
            row["MicroBench Warnings"],
            row["Input Shapes"].strip('"'),
        )
        for row in csv.DictReader(data.decode().splitlines())
        if row["Average Duration(us)"]
    ]


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return (ordered[half] + ordered[~half]) / 2
