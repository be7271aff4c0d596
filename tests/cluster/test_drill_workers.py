"""A drill: workers that fail until the Job controller gives their index up. It ends with a
complete, verified database. Other ends of workers: long/test_long_drill_workers.py."""

import pytest

from collector.codec.errors import NotFound
from collector.model import keys
from tests.cluster.drill import GOOD, Drill

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]


def test_shard_that_always_kills_its_worker_is_crashed_and_blames_no_node(
    drill: Drill,
):
    drill.launch_with_orders(
        lambda plan: {
            "shard_that_kills": plan.shards[len(plan.shards) // 2].shard_id,
            "environment": {"OPMETER_HOLD_S": "1"},
        }
    )
    drill.finish(1200)
    outcomes, cases = drill.outcomes(), drill.cases()
    plan = drill.plan()
    poisoned = plan.shards[len(plan.shards) // 2].shard_id
    assert {o for c, o in outcomes.items() if cases[c] == poisoned} <= {"crashed", "unsupported"}
    assert {o for c, o in outcomes.items() if cases[c] != poisoned} <= GOOD
    assert "crashed" in outcomes.values()
    assert "ShardFailed" in drill.reasons() and "NodeQuarantined" not in drill.reasons()
    assert all(wave["avoid"] == [] for wave in drill.waves())
    with pytest.raises(NotFound):  # an unexpected end does not count against any node
        drill.store.get(keys.nodes(drill.name))
