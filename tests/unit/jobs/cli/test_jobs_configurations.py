"""Configurations of a sweep."""

import pytest

from collector.codec.errors import BadInput
from collector.engine.engine_process import EngineSettings, GraphMode
from jobs.cli.configurations import Configuration, swept

pytestmark = pytest.mark.fast

BASE = Configuration("", EngineSettings("vllm-ascend-0.18", (), options={"seed": 1}), rate=2.0)


def test_each_combination_is_a_configuration():
    found = swept(["tp=4,8", "--max-num-seqs=16,64"], BASE)
    assert [one.name for one in found] == [
        f"tp={tp} max_num_seqs={count}" for tp in (4, 8) for count in (16, 64)
    ]
    assert [one.settings.tp for one in found] == [4, 4, 8, 8]
    assert found[1].settings.options == {"seed": 1, "max_num_seqs": 64}
    assert all(one.rate == 2.0 for one in found)
    assert swept((), BASE) == (BASE,)


def test_a_name_is_an_option_of_the_command_of_the_engine_or_a_variable():
    assert swept(["graph=eager"], BASE)[0].settings.graph is None
    (drafting,) = swept(["speculative=1", "accepted=0.6"], BASE)
    assert (drafting.settings.speculative, drafting.settings.accepted) == (1, 0.6)
    words = ["graph=piecewise", "concurrency=8", "rate=0.5", "release=vllm-ascend-0.23", "VLLM_X=1"]
    (found,) = swept([*words, "async_scheduling=false", "kv_cache_dtype=int8"], BASE)
    settings = found.settings
    assert (settings.graph, settings.release) == (GraphMode.PIECEWISE, "vllm-ascend-0.23")
    assert (found.concurrency, found.rate) == (8, 0.5)
    assert settings.environment == {"VLLM_X": "1"}
    assert settings.options == {"seed": 1, "async_scheduling": False, "kv_cache_dtype": "int8"}


def test_experts_over_all_ranks_stay_so():
    one = Configuration("", EngineSettings("vllm-ascend-0.18", (), tp=4, ep=4))
    assert [each.settings.ep for each in swept(["tp=4,8"], one)] == [4, 8]
    assert [each.settings.ep for each in swept(["tp=4,8", "ep=1"], one)] == [1, 1]


@pytest.mark.parametrize(
    "word", ["tp", "=1", "tp=", "tp=1,,2", "tp=1.5", "rate=-1", "graph=yes", "accepted=2"]
)
def test_another_text_is_refused(word):
    with pytest.raises(BadInput):
        swept([word], BASE)
