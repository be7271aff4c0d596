"""`opmeter plan --budget` as a user types it."""

import json
import sys
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from collector.errors import BadInput
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import campaign_from_text
from jobs.cli.app import app
from jobs.planning.sources import load_sources
from tests.unit.jobs.cli.small_model import SERVING

pytestmark = pytest.mark.fast


@pytest.fixture
def folder(small_model_folder):
    return small_model_folder


def plan(*words):
    return CliRunner().invoke(app, ["plan", *words, "--root", "data"])


def test_a_budget_tells_what_is_worth_measuring_first(folder):
    none = plan("campaign.yaml", "--budget", "0", "--missing", "none")
    assert "nothing is written" in none.stderr and not (folder / "none").exists()
    said = plan("campaign.yaml", "--budget", "1h", "--missing", "gaps")
    lines = said.stdout.splitlines()
    (at,) = (at for at, line in enumerate(lines) if line.startswith("measuring   2 cases"))
    assert lines[at + 1].split()[:4] == ["0.0", "s", "0", "cases"]
    (end,) = (at for at, line in enumerate(lines) if line.endswith("the budget"))
    assert "100.0%" in lines[end] and lines[end + 1].startswith("first of them")
    assert sorted(line.split("Sort ")[1] for line in lines[end + 2 :]) == [
        "1,100 FLOAT",
        "4,100 FLOAT",
    ]
    assert "2 cases in gaps" in said.stderr
    text = "campaign: c\nsources: [{tree: gaps}]\nbackend: cpu\n"
    (gaps,) = load_sources(campaign_from_text(text, path="c", base=folder), MemoryStore())
    assert {record.kernel_type for record in gaps.records} == {"Sort"}


def test_a_model_is_asked_for_by_the_options_that_coverage_has(folder):
    words = ("--model", "config.json", "--concurrency", "1", "--concurrency", "4", *SERVING)
    of_options, of_campaign = plan(*words, "--budget", "20h"), plan("campaign.yaml", "--budget=20")
    assert of_options.exit_code == 0 and of_options.stdout == of_campaign.stdout
    assert of_options.stdout.splitlines()[-1].startswith("no plan is written")
    assert not (folder / "data" / "campaigns" / "small" / "plans" / "1.json").exists()


def test_of_a_stack_without_a_version_all_is_to_be_measured(folder):
    words = ("--model", "qwen3-32b", "--layout", "tp=16,nz=2", "--concurrency", "4")
    known = CliRunner().invoke(app, ["plan", *words, "--budget", "1", "--root", "nowhere"])
    assert "--device" in str(known.exception)
    said = plan(*words, "--budget", "0.05h", "--device", "ATLAS_800_A3_752T_128G_DIE")
    assert said.stdout.splitlines()[0].split() == ["version", "ATLAS_800_A3_752T_128G_DIE"]
    shares = [line.split()[4] for line in said.stdout.splitlines() if " cases " in line][1:]
    assert shares[0] == "0.0%" and shares[-1] == "100.0%"


def test_a_gpu_runs_references_and_takes_other_time(folder):
    words = ("--model", "config.json", *SERVING, "--budget", "1", "--device")
    said = [plan(*words, name).stdout for name in ("CUDA_NVIDIA_H200", "ATLAS_800_A2_313T_64G")]
    gpu, npu = (text.splitlines()[1] for text in said)
    assert gpu.startswith("measuring") and npu.startswith("measuring") and gpu != npu


def test_a_budgets_curve_is_drawn(folder):
    plan("campaign.yaml", "--budget", "0", "--curve", "curve.svg")
    picture = ElementTree.parse(folder / "curve.svg").getroot()
    line = max(picture.findall("{*}polyline"), key=lambda one: len(one.get("points").split()))
    points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
    assert points == sorted(points) and len(points) == 3  # nothing, then each of two cases
    heights = [y for _, y in points]
    assert heights == sorted(heights, reverse=True) and heights[-1] == 40.0  # all of the time
    texts = [one.text for one in picture.findall("{*}text")]
    assert "the budget" in texts and "device-hours" in texts


def test_a_curve_is_a_png_where_its_file_is_called_so(folder):
    image = pytest.importorskip("PIL.Image", reason="pip install '.[png]'")
    plan("campaign.yaml", "--budget", "0", "--curve", "curve.png")
    with image.open(folder / "curve.png") as picture:
        assert picture.size == (1440, 800)
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
    assert {(255, 255, 255), (0x25, 0x63, 0xEB), (0, 0, 0)} <= colours  # page, curve, texts


def test_without_pillow_a_png_is_refused_with_what_brings_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    said = plan("campaign.yaml", "--budget", "0", "--curve", "curve.png")
    assert isinstance(said.exception, BadInput) and "opmeter[png]" in str(said.exception)
    assert plan("campaign.yaml", "--budget", "0", "--curve", "curve.svg").exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "a CAMPAIGN is wanted"),
        (["--budget", "20h"], "one of CAMPAIGN, --profile and --model"),
        (["campaign.yaml", "--budget", "20 days"], "device-hours such as 20h"),
        (["campaign.yaml", "--budget", "1", "--dry-run"], "writes no plan"),
        (["campaign.yaml", "--budget", "1", "--curve", "curve.gif"], ".svg or .png"),
        (["campaign.yaml", "--budget", "1", "--curve", "campaign.yaml"], "ends with .svg"),
        (["campaign.yaml", "--budget", "1", "--missing", "data"], "not there yet"),
        (["campaign.yaml", "--curve", "curve.svg"], "want --budget"),
        (["--model", "qwen3-32b"], "want --budget"),
        (["campaign.yaml", "--version", "1"], "want --budget"),
        (["--model", "qwen3-32b", "--budget", "1", "--device", "X"], "whose rates are known"),
    ],
)
def test_what_cannot_be_meant_is_refused(folder, words, said):
    error = plan(*words).exception
    assert isinstance(error, BadInput) and said in str(error)


def test_a_picture_that_is_there_is_kept(folder):
    (folder / "curve.svg").write_text(json.dumps("mine"))
    error = plan("campaign.yaml", "--budget", "1", "--curve", "curve.svg").exception
    assert isinstance(error, BadInput) and "not there yet" in str(error)
