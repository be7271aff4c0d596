"""The time of a host in the log of an engine."""

import pytest

from collector.codec.errors import BadInput, OpmeterError
from collector.engine.engine_process import EngineSettings, GraphMode
from collector.engine.host_time import HostMode, settings_of, times_of_steps
from collector.engine.recorded_calls import PassTokens, read_steps

pytestmark = pytest.mark.fast

# A step: what the host computed since the line before, in us, and the call.
STEP = (
    *((9, 'CUSTOM MARK("end", {0})'), (50, 'CUSTOM MARK("step", {0})')),
    *((30, "ACLNN aclnnAdd(f32[4]:ND)"), (10, "ACLNN aclnnAdd(f32[4]:ND)")),
    *((5, "HOST record(3)"), (2, "HOST replay(1)"), (0, "ACLNN aclnnAdd(f32[4]:ND)")),
    *((0, "HOST replay_end(1)"), (13, "HCCL HcclAllReduce(f32[4]:ND, 0, ranks=4)")),
)


@pytest.fixture
def log():
    lines, ns = [], 1_000_000
    for number in range(3):
        for us, text in STEP:
            ns += us * 1000 * (1 + number)
            lines.append(f"{ns} 0 1 {text.format(number)}")
    return [*lines, f'{ns + 7000} 0 1 CUSTOM MARK("end", 3)']


def test_calls_have_their_mean_time_in_each_step(log):
    found = times_of_steps(log, [1, 2])
    assert found["aclnnAdd"] == [40, 60]  # without the one that a graph runs
    assert found["record"] == [10, 15] and found["replay"] == [4, 6]
    assert found["HcclAllReduce"] == [26, 39]
    assert found["pass"] == [120, 180]
    assert found["launch"] == [40, 60]
    assert found["between"] == [27, 7]


def test_step_that_is_not_complete_is_refused(log):
    assert len(list(read_steps(log, [0, 2]))) == 2
    with pytest.raises(OpmeterError):
        list(read_steps(log, [2, 3]))


def test_fallback_has_graphs_of_other_sizes_alone():
    settings = EngineSettings("vllm-ascend-0.18", (PassTokens("decode", 16, 1, 512),))
    found = settings_of(settings, HostMode.FALLBACK)
    assert found.graph is GraphMode.FULL_DECODE
    assert found.options["compilation_config"]["cudagraph_capture_sizes"] == [1]
    assert settings_of(settings, HostMode.EAGER) == settings
    alone = EngineSettings("vllm-ascend-0.18", (PassTokens("decode", 1, 1, 512),))
    with pytest.raises(BadInput):
        settings_of(alone, HostMode.FALLBACK)
