"""The list of published models, and the page of what recording them gave."""

import json
from dataclasses import asdict

import pytest

from collector.engine.environments import RELEASES
from collector.workloads.call_order import Block
from collector.workloads.models import bundled_name
from collector.workloads.recorded_step import write_recording
from tests.unit.collector.engine.test_engine_calls import GATHER, MATMUL, recording_of
from tools.configs import Origin, Outcome, page, place_of, published, shown_blocks

pytestmark = pytest.mark.fast


def test_models_of_the_list_have_a_config_and_one_name():
    found = published()
    models = [one.model for one in found if not one.what]
    assert len(set(models)) == len(models)
    for one in found:
        is_written = one.origin in (Origin.CLASS, Origin.PAGE)
        assert bool(one.keys) == is_written, one.model
        assert one.origin is not Origin.PACKAGE or bundled_name(one.model), one.model


def test_page_has_what_ran_and_what_was_refused(tmp_path):
    first, second, *_ = published()
    release, *_ = RELEASES
    for one, refusal in ((first, ""), (second, "vllm refuses | this")):
        place = place_of(tmp_path, one, release)
        place.mkdir(parents=True)
        (place / "outcome.json").write_text(json.dumps(asdict(Outcome(9.0, 8.0, 1.5, refusal))))
        if not refusal:
            (place / "found.json.gz").write_bytes(write_recording(recording_of(MATMUL, GATHER)))
    recorded, _, refused = "".join(page(tmp_path)).partition("## Refused")
    assert f"| {first.model} | 0.18 |" in recorded
    assert "| 64 | 8 s | 1.5 GB |  |" in recorded
    assert f"| {second.model} | 0.18 | 8 s | vllm refuses \\| this |" in refused


def test_order_is_shown_by_blocks_as_long_as_a_layer():
    layer = tuple(range(10))
    inner = Block(3, layer)
    shown = shown_blocks((1, 2, Block(4, (inner, *layer)), Block(2, (3, 4)), 5))
    assert shown == "2 + 4 x (3 x 10 + 10) + 5"
