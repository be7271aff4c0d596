"""`opmeter coverage --budget` as a user calls it."""

import json
import sys
from xml.etree import ElementTree

import pytest

from collector.codec.errors import BadInput
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import campaign_from_text
from jobs.cli.drawing import round_ticks
from jobs.planning.sources import load_sources
from tests.unit.jobs.cli.in_process import invoked
from tests.unit.jobs.cli.small_model import LACKS, MODEL, SERVING, coverage
from tests.unit.jobs.printed import missing, numbers

pytestmark = pytest.mark.fast


@pytest.fixture
def folder(small_model_folder):
    return small_model_folder


@pytest.mark.thorough
def test_budget_lists_the_most_valuable_cases_first(folder):
    none = coverage("campaign.yaml", "--budget", "0", "--missing", "none")
    assert none.exit_code == 0 and not (folder / "none").exists()
    assert "budget" in none.stderr  # what is missing does not fit it
    message = coverage("campaign.yaml", "--budget", "1h", "--missing", "gaps")
    lines = message.stdout.splitlines()
    (at,) = (at for at, line in enumerate(lines) if line.startswith("missing "))
    assert numbers(lines[at])[0] == "2"
    assert lines[at + 1].split()[:4] == ["0.0", "s", "0", "cases"]
    (end,) = (at for at, line in enumerate(lines) if line.endswith("budget"))
    assert "100.0 %" in lines[end]
    first = [line.split(f"{LACKS} ")[1] for line in lines[end + 1 :] if f"{LACKS} " in line]
    assert sorted(first) == ["1,151936 FLOAT", "4,151936 FLOAT"]
    assert missing(message.stderr, ["2 cases", "tree: gaps"]) == []
    text = "campaign: c\nsources: [{tree: gaps}]\nbackend: cpu\n"
    (gaps,) = load_sources(campaign_from_text(text, path="c", base=folder), MemoryStore())
    assert {record.kernel_type for record in gaps.records} == {LACKS}


@pytest.mark.thorough
def test_options_of_a_model_are_a_campaign_with_it(folder):
    words = ("--model", MODEL, "--concurrency", "1", "--concurrency", "4", *SERVING)
    of_options, of_campaign = (
        coverage(*words, "--budget", "20h"),
        coverage("campaign.yaml", "--budget=20"),
    )
    assert of_options.exit_code == 0 and of_options.stdout == of_campaign.stdout
    assert "--missing" in of_options.stdout.splitlines()[-1]
    assert not (folder / "data" / "campaigns" / "small" / "plans" / "1.json").exists()


@pytest.mark.thorough
def test_all_cases_are_missing_for_a_stack_without_a_version(folder):
    words = ("--model", "qwen3-32b", "--layout", "tp=16,nz=2", "--concurrency", "4")
    known = invoked("coverage", *words, "--budget", "1", "--root", "nowhere")
    assert "--device" in str(known.exception)
    message = coverage(*words, "--budget", "0.05h", "--device", "ATLAS_800_A3_752T_128G_DIE")
    assert message.stdout.splitlines()[0].split() == ["version", "ATLAS_800_A3_752T_128G_DIE"]
    lines = message.stdout.splitlines()
    steps = [line for line in lines if line.startswith("  ") and " cases " in line]
    shares = [line.split()[4] for line in steps]
    assert shares[0] == "0.0" and float(shares[-1]) > 99  # some cannot be measured


@pytest.mark.thorough
def test_forecast_of_a_gpu_differs_from_that_of_an_npu(folder):
    words = ("--model", MODEL, *SERVING, "--budget", "1", "--device")
    message = [
        coverage(*words, name).stdout for name in ("CUDA_NVIDIA_H200", "ATLAS_800_A2_313T_64G")
    ]
    gpu, npu = (text.splitlines()[1] for text in message)
    assert gpu.startswith("missing") and npu.startswith("missing") and gpu != npu


@pytest.mark.thorough
def test_curve_of_a_budget_is_drawn(folder):
    coverage("campaign.yaml", "--budget", "0", "--curve", "curve.svg")
    picture = ElementTree.parse(folder / "curve.svg").getroot()
    line = max(picture.findall("{*}polyline"), key=lambda one: len(one.get("points").split()))
    points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
    assert points == sorted(points) and len(points) == 3  # nothing, then each of two cases
    heights = [y for _, y in points]
    assert heights == sorted(heights, reverse=True) and heights[-1] == 40.0  # all of the time
    texts = [one.text for one in picture.findall("{*}text")]
    assert any("budget" in text for text in texts) and "device-hours" in texts


def test_axis_ticks_are_round_numbers():
    for last, expected in (
        (13.7, "0 5 10"),
        (10, "0 2 4 6 8 10"),
        (0.3, "0 0.05 0.1 0.15 0.2 0.25 0.3"),
        (55, "0 10 20 30 40 50"),
        (203_000, "0 50000 100000 150000 200000"),
    ):
        assert " ".join(f"{one:.10g}" for one in round_ticks(last)) == expected, last


@pytest.mark.thorough
def test_curve_is_a_png_if_its_file_has_that_suffix(folder):
    image = pytest.importorskip("PIL.Image", reason="pip install '.[png]'")
    coverage("campaign.yaml", "--budget", "0", "--curve", "curve.png")
    with image.open(folder / "curve.png") as picture:
        assert picture.size == (1440, 800)
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
    assert {(255, 255, 255), (0x25, 0x63, 0xEB), (0, 0, 0)} <= colours  # page, curve, texts


@pytest.mark.thorough
def test_png_without_pillow_is_refused_with_the_extra_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    message = coverage("campaign.yaml", "--budget", "0", "--curve", "curve.png")
    assert isinstance(message.exception, BadInput) and "opmeter[png]" in str(message.exception)
    assert coverage("campaign.yaml", "--budget", "0", "--curve", "curve.svg").exit_code == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "data"),
    [
        (["--budget", "20h"], ["FILE", "--profile", "--model"]),
        (["campaign.yaml", "--budget", "20 days"], ["--budget", "'20 days'"]),
        (["campaign.yaml", "--budget", "1", "--json"], ["--budget", "--json"]),
        (["campaign.yaml", "--misses", "new.jsonl"], ["--misses", "--missing"]),
        (["standard.yaml", "--budget", "1"], ["--misses"]),
        (["cases.txt"], ["cases.txt: ", "campaign", "query --file"]),
        (
            ["campaign.yaml", "--budget", "1", "--curve", "curve.gif"],
            ["curve.gif: ", ".svg", ".png"],
        ),
        (
            ["campaign.yaml", "--budget", "1", "--curve", "campaign.yaml"],
            ["campaign.yaml: ", ".svg"],
        ),
        (["campaign.yaml", "--budget", "1", "--missing", "data"], ["data: ", "--missing"]),
        (["campaign.yaml", "--curve", "curve.svg"], ["--budget"]),
        (["--model", "qwen3-32b", "--budget", "1", "--device", "X"], ["--device", "'X'"]),
    ],
)
def test_invalid_budget_options_are_refused(folder, words, data):
    (folder / "cases.txt").write_text("Add 1,512;1,512 bf16\n" * 50)
    (folder / "standard.yaml").write_text("schema_version: 1\naxes: {}\nkernels: {}\n")
    error = coverage(*words).exception
    assert isinstance(error, BadInput) and missing(str(error), data) == []


def test_an_error_about_a_value_names_its_option(folder):
    for words, option in (
        ("--model gpt-9", "--model"),
        ("--model dsv3 --layout tp=8", "--layout"),
        ("--model qwen3-32b --layout tp=7", "--layout"),
        ("--model qwen3-32b --phase both", "--phase"),
        ("--model qwen3-32b --release 9", "--release"),
        ("--model qwen3-32b --grid 3,0", "--grid"),
    ):
        error = coverage(*words.split(), "--budget", "1").exception
        assert isinstance(error, BadInput), words
        assert str(error).startswith(f"{option}: ") and "sources" not in str(error), words


@pytest.mark.thorough
def test_existing_picture_is_not_overwritten(folder):
    (folder / "curve.svg").write_text(json.dumps("mine"))
    error = coverage("campaign.yaml", "--budget", "1", "--curve", "curve.svg").exception
    assert isinstance(error, BadInput) and str(error).startswith("curve.svg: ")
    assert json.loads((folder / "curve.svg").read_text()) == "mine"
