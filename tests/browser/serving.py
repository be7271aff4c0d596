"""Made configurations that served a load, for the tests of their page and for screenshots."""

from pathlib import Path

from collector.report.pages import Folder
from collector.report.serving_pages import ServedConfiguration, write_serving
from collector.workloads.served_requests import ServingTimes
from tests.bench.varied_database import HOSTILE

# TPOT in ms, tokens per second and the half-widths of both; by name and NPUs
_MADE = {
    ("tp=4 max_num_seqs=16", 4): (18.0, 700.0, 0.05),
    ("tp=4 max_num_seqs=64", 4): (31.0, 1700.0, 0.05),
    ("tp=8 max_num_seqs=16", 8): (12.0, 1100.0, 0.05),
    ("tp=8 max_num_seqs=64", 8): (31.5, 2100.0, 0.4),
    (f"tp=16 {HOSTILE}", 16): (11.0, 2400.0, 0.5),
}


def made_configurations() -> list[ServedConfiguration]:
    """Return configurations of which two have a range alone, and one that was refused."""
    found = [
        ServedConfiguration(
            name,
            npus,
            "assumed",
            tuple(_run(tpot_ms, per_s, width) for width in (0.0, -half, half)),
            {"exact": 1 - half, "estimated": half},
        )
        for (name, npus), (tpot_ms, per_s, half) in _MADE.items()
    ]
    return [*found, ServedConfiguration("tp=3", 3, refused=f"vllm refuses it {HOSTILE}")]


def _run(tpot_ms: float, per_s: float, width: float) -> ServingTimes:
    ms, rate = tpot_ms * (1 + width), per_s / (1 + width)
    return ServingTimes((20 * ms,) * 8, (ms,) * 8, round(100 * rate), 100.0)


def write_made_serving(folder: Path, language: str = "en") -> Path:
    """Write the page of these configurations."""
    target = folder / f"serving-{language}"
    with Folder(target, language) as pages:
        write_serving(pages, f"qwen3-32b {HOSTILE}", "A3/vllm0.18.0", made_configurations())
    return target
