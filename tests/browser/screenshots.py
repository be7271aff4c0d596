"""Make screenshots of every kind of page: `python -m tests.browser.screenshots DIR [ROOT]`; or the
pictures of the documentation: `python -m tests.browser.screenshots --pictures`.

The screenshots are of a made database with texts that no page may run, of one of 150,000 cases, of
made campaigns of 48 and 1,000 devices, of a step and a model, and of the database at ROOT, such as
the quickstart's `opmeter-data`; each at 1440 and 400 pixels, in light and dark. Look at them after
each change of the pages."""

import sys
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from jobs.cli.report import campaign_report_command
from tests.browser.campaigns import write_made_campaign
from tests.browser.chromium import chromium, shown
from tests.browser.models import write_made_model
from tests.browser.reports import write_made_comparison, write_made_report, write_report
from tests.browser.serving import write_made_serving
from tests.browser.steps import write_made_step

_SIZES = ((1440, "light"), (1440, "dark"), (400, "light"))
_SMALL, _LARGE = 6000, 150_000
_FEW_DEVICES, _MANY_DEVICES = 48, 1000


def main(target: Path, root: Path | None) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for name, path, fragment in _pages(target, root):
            for width, scheme in _SIZES:
                _save(browser, target / f"{name}-{width}-{scheme}.png", path, fragment)


def _pages(target: Path, root: Path | None) -> Iterator[tuple[str, Path, str]]:
    """Yield the name, the file and the fragment of each page."""
    for cases in (_SMALL, _LARGE):
        report = write_made_report(target, cases)
        yield f"database-{cases}", report / "index.html", ""
        for kernel in ("MatMulV2", "FusedInferAttentionScore"):
            yield f"{kernel}-{cases}", report / f"kernels/{kernel}.html", ""
    report = write_made_report(target, _SMALL)
    yield "hostile", next((report / "kernels").glob("Evil*.html")), ""
    yield "certificate", report / "kernels/MatMulV2.html", "#cases tbody tr:nth-child(2) button"
    yield "comparison", write_made_comparison(target, _SMALL) / "index.html", ""
    for devices in (_FEW_DEVICES, _MANY_DEVICES):
        yield f"campaign-{devices}", _campaign(target, devices), ""
    yield "session", _campaign(target, _FEW_DEVICES), "#timeline figure:last-of-type svg.plot"
    yield "step", write_made_step(target) / "index.html", ""
    yield "model", write_made_model(target) / "index.html", ""
    yield "serving", write_made_serving(target) / "index.html", ""
    yield "serving-zh", write_made_serving(target, "zh") / "index.html", ""
    yield "campaign-zh", _campaign(target, _FEW_DEVICES, "zh"), ""
    yield "model-zh", write_made_model(target, "zh") / "index.html", ""
    chinese = write_made_report(target, _SMALL, "zh")
    yield "chinese", chinese / "index.html", ""
    if root is not None:
        report = write_report(root, target / "report-of-root")
        yield "database-of-root", report / "index.html", ""
        yield "kernel-of-root", next((report / "kernels").glob("Add.html")), ""


def _campaign(target: Path, devices: int, language: str = "en") -> Path:
    root = write_made_campaign(target, devices, is_open=True)
    page = target / f"campaign-page-{devices}-{language}"
    campaign_report_command("made", output=page, root=str(root), lang=language)
    return page / "index.html"


def _save(browser: Any, file: Path, path: Path, click: str) -> None:
    _, width, scheme = file.stem.rsplit("-", 2)
    with shown(browser, width=int(width), scheme=scheme) as one:
        one.open(path)
        if click:
            one.page.click(click)
            one.page.wait_for_selector("dialog figure svg.plot")
        one.page.screenshot(path=file, full_page=not click)
        print(file, *one.faults)


def pictures(target: Path) -> None:
    """Make the pictures of the documentation, of made databases: the upper part of a page."""
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        report = write_made_report(Path(folder), _SMALL)
        comparison = write_made_comparison(Path(folder), _SMALL, "a model")
        for name, page, height in (
            ("report-kernel", report / "kernels/MatMulV2.html", 1010),
            ("report-comparison", comparison / "index.html", 1110),
            ("report-campaign", _campaign(Path(folder), _FEW_DEVICES), 1530),
            ("report-step", write_made_step(Path(folder), "rank0_ascend_pt") / "index.html", 860),
        ):
            with shown(browser, width=1240) as one:
                one.open(page)
                clip = {"x": 0, "y": 0, "width": 1240, "height": height}
                data = one.page.screenshot(full_page=True, clip=clip)
            image = Image.open(BytesIO(data)).convert("RGB").quantize(96)  # a third of the bytes
            image.save(target / f"{name}.png", optimize=True)


if __name__ == "__main__":
    if sys.argv[1] == "--pictures":
        pictures(Path(__file__).parents[2] / "docs" / "pictures")
        sys.exit()
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
