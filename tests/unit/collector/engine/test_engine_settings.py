"""Ranks of an engine, and those that cannot be recorded."""

import pytest

from collector.codec.errors import BadInput
from collector.engine.engine_process import EngineSettings, check_settings

pytestmark = pytest.mark.fast

PROMPTS, DECODES = "prefill_context_parallel_size", "decode_context_parallel_size"


@pytest.mark.parametrize(
    ("options", "context", "ranks"),
    [
        ({}, {}, 4),
        ({PROMPTS: 2}, {"pcp": 2}, 8),
        ({DECODES: 2}, {"dcp": 2}, 4),
        ({PROMPTS: 2, DECODES: 2}, {"pcp": 2, "dcp": 2}, 8),
        ({PROMPTS: "two", DECODES: 1}, {}, 4),  # the engine refuses the text
    ],
)
def test_ranks_that_share_a_context_count(options, context, ranks):
    settings = EngineSettings("vllm-ascend-0.18", (), tp=2, dp=2, options=options)
    assert (settings.context, settings.ranks) == (context, ranks)
    check_settings(settings)


@pytest.mark.parametrize("wrong", [{"ep": 2}, {"options": {"pipeline_parallel_size": 2}}])
def test_ranks_that_cannot_be_recorded_are_refused(wrong):
    with pytest.raises(BadInput):
        check_settings(EngineSettings("vllm-ascend-0.18", (), tp=4, **wrong))
