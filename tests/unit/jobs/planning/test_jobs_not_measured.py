"""The kernels of a recording that no operator measures, by their share of the time."""

import pytest

from collector.workloads.recorded_step import RecordedLaunch, Recording
from jobs.planning.not_measured import not_measured
from tests.unit.collector.engine.made import Made, MadeCall

pytestmark = pytest.mark.fast


def launch(kernel, inputs, output, each, dtype="DT_BF16"):
    cells = {
        "Input Shapes": f'"{inputs}"',
        "Input Data Types": ";".join([dtype] * len(inputs.split(";"))),
        "Input Formats": ";".join(["ND"] * len(inputs.split(";"))),
        "Output Shapes": f'"{output}"',
        "Output Data Types": dtype,
        "Output Formats": "ND",
    }
    return MadeCall(RecordedLaunch(kernel, kernel, cells, {}, False), 1 + 9 * each)


def recording_of(*launches):
    one = Made("decode", 4, 1, 4096, launches).recorded()
    return Recording(
        model="tiny",
        config_sha256="",
        release="vllm-ascend-0.18",
        layout={"tp": 1},
        device="A3",
        environment={},
        settings={},
        wheels={},
        host="",
        passes=(one,),
    )


def test_kernels_without_an_operator_are_sorted_by_their_time():
    found = not_measured(
        recording_of(
            launch("no_such_kernel", "4,8", "4,8", 1),
            launch("MatMulV2", "4096,4096;4096,4096", "4096,4096", 1),
            launch("another_kernel", "4096,4096", "4096,4096", 1),
            launch("MatMulV2", "4,8;9,9", "4,9", 0),  # refused, and its work unknown
        )
    )
    assert [(one.kernel, one.launches) for one in found[:2]] == [
        ("another_kernel", 10),
        ("no_such_kernel", 10),
    ]
    assert found[2].kernel == "MatMulV2"
    assert found[2].launches == 1
    assert "operator" in found[0].why
    assert found[0].share > 5 * found[1].share
    assert sum(one.share for one in found) < 0.9  # the product of matrices is measured
