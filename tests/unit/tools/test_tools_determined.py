"""Loads are chosen until one condition, size and list is left for every load of a range."""

import pytest

from collector.engine.recorded_calls import PassTokens
from collector.workloads.deployments import deployed_step, load_names
from collector.workloads.layout import Layout
from collector.workloads.recorded_step import RecordedLaunch, Recording
from collector.workloads.serving import Batch, Phase
from tests.unit.collector.engine.made import Made, MadeCall
from tools.recordings.candidates import Conditions, Terms
from tools.recordings.formulas import Constants, solved_in_spaces
from tools.recordings.spaces import LoadSpan, batches_of, is_recordable, random_batches

pytestmark = pytest.mark.fast

CONSTANTS = Constants(pages=7919, table_width=61)
SPAN = LoadSpan("prefill", 1, 4096, 0, False, 7808)
TP = 4


def launch(kernel, shapes, written):
    cells = {"Input Shapes": f'"{shapes}"', "Output Shapes": f'"{written}"'}
    return MadeCall(RecordedLaunch(f"ACLNN aclnn{kernel}()", kernel, cells, {}, False), 1)


def prefill(requests, queries):
    """Simulate a pass with a kernel for many tokens, and two for what pads or is sampled."""
    tokens = requests * queries
    part = -(-tokens // TP)
    launches = [launch("MatMulV2", f"{tokens},64;64,32", f"{tokens},32")]
    if tokens > 1337:
        launches.append(launch("Transpose", f"{tokens},64", f"64,{tokens}"))
    if part * TP > tokens + 1 or requests > 1:
        launches.append(launch("Fill", "1;", f"{requests}"))
    if part * TP > tokens:
        launches.append(launch("PadV3", f"{tokens},64", f"{part * TP},64"))
    return Made("prefill", requests, queries, queries, tuple(launches))


def solved(loads):
    passes = tuple(prefill(*load).recorded() for load in loads)
    recording = Recording(
        *("tiny", "0" * 64, "vllm-ascend-0.18", {"tp": TP, "dp": 1, "ep": 1}, "A3", {}),
        *({"graph_sizes": []}, {"vllm": "1"}, "", passes),
    )
    tokens = [PassTokens("prefill", requests, queries, queries) for requests, queries in loads]
    ranges, spaces = [(SPAN.least, SPAN.most, tokens)], [batches_of(SPAN, ())]
    return solved_in_spaces(recording, str(Layout(TP)), ranges, CONSTANTS, spaces)


def test_further_loads_determine_every_load_of_a_range():
    """Borders are found between recorded loads, conditions of two terms are distinguished."""
    loads = [(1, 11), (3, 101), (1, 2000), (5, 411)]
    while (found := solved(loads)).further[0]:
        loads += [(one.requests, one.queries) for one in found.further[0]]
    assert found.left == (0,)
    assert len(loads) < 100
    for batch in batches_of(SPAN, ()):
        derived = deployed_step(found.deployment, batch)
        cells = [one.record.cells for one in derived.kernels]
        kernels = [
            (one.record.kernel_type, cell["Input Shapes"], cell["Output Shapes"])
            for one, cell in zip(derived.kernels, cells, strict=True)
        ]
        expected = [
            (one.what.kernel, one.what.cells["Input Shapes"], one.what.cells["Output Shapes"])
            for one in prefill(batch.requests, batch.queries).launches
        ]
        assert sorted(kernels) == sorted(expected), batch


def test_conditions_that_fit_are_those_of_the_recorded_loads():
    names = [load_names(one, 1) for one in batches_of(SPAN, ())]
    recorded = [load_names(Batch(Phase.PREFILL, *one), 1) for one in ((1, 9, 9), (2, 9, 9))]
    found = Conditions(Terms(recorded, names)).fitting([False, True])
    assert found[0].text == "sampled > 1"
    assert "tokens > 13" in [one.text for one in found]  # between 9 and 18
    assert all(one.truth[:2].tolist() == [False, True] for one in found)
    assert len({one.truth.tobytes() for one in found}) == len(found)


@pytest.mark.parametrize(
    "span",
    [
        LoadSpan("decode", 1, 256, 0, False, 7808),
        LoadSpan("mixed", 2, 256, 0, False, 7808),
        LoadSpan("chunk", 257, 8192, 0, True, 32128),
        LoadSpan("prefill", 2, 512, 1, False, 7808),
    ],
)
def test_random_loads_are_in_their_range(span):
    found = random_batches(span, 50, 1)
    assert found == random_batches(span, 50, 1)
    assert len(found) == 50 and all(map(is_recordable, found))
    for one in (*found, *batches_of(span, ())):
        assert span.least <= one.tokens <= span.most
        assert max(keys for _, keys in one.lengths()) <= span.longest
