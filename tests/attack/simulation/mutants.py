"""Known defects, planted one at a time: the simulation must detect each of them.

Each replaces a piece of the code under test while a seed is simulated, and is a plausible error.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from collector.database import commits, merge
from collector.model import keys
from collector.model.manifest import shard_commit_to_json
from collector.worker import answers, attempt
from jobs.decide import decision, findings, job_shares
from jobs.decide.actions import Finish
from jobs.objects.waves import NodeFailures

Patch = tuple[Any, str, Any]


def _commit_over(store: Any, commit: commits.Commit) -> bool:
    """Write its commit though another was first: two concurrent merges, and one is lost."""
    store.put(keys.commit(commit.number), commits.commit_to_json(commit))
    return True


def _commit_twice(self: attempt.Attempt, *arguments: Any) -> Any:
    """A worker that commits a shard that others have committed."""
    try:
        return _COMMIT(self, *arguments)
    finally:
        listed = [i.key for i in self.store.list(keys.attempts(self.plan.campaign, self.shard))]
        key = keys.attempt_manifest(self.plan.campaign, self.shard, self.attempt)
        if key in listed:
            mine = attempt._stored(key, self.store.get(key))
            reported = attempt.ShardCommit(self.shard, self.attempt, mine, nonce="mine")
            self.store.put(
                keys.committed(self.plan.campaign, self.shard), shard_commit_to_json(reported)
            )


def _final_by_order(tried: Any) -> dict[str, str]:
    """The first try is the result, good or not."""
    return {m.case_id: m.measurement_id for m in reversed(list(tried))}


def _final_forgets(tried: Any) -> dict[str, str]:
    """Cases without a good measurement have no result."""
    return dict(_FINAL(good for good in tried if good.is_good))


def _no_difference(step: Any) -> bool:
    """Publish although nothing is new."""
    return False


def _quarantines_all(self: NodeFailures, nodes: Any) -> frozenset[str]:
    """If one node fails, none is used."""
    return frozenset(nodes) if self.against() else frozenset()


def _everyone_at_once(job: Any, left: int) -> int:
    """Each wave takes all shards."""
    return max(1, job.completions - 1)


def _nothing_left(*arguments: Any, **more: Any) -> Iterator[Any]:
    """Report the campaign as finished when nothing runs any more."""
    yield Finish()


def _as_many_as_left(claim: Any, left: int) -> int:
    """Scale down a gang like any Job."""
    return _SHARE(replace(claim, job=replace(claim.job, gang=False)), left)


def _waits_for_it(self: Any, job: Any) -> bool:
    """A gang waits for a lost node."""
    return False


_SHARE = job_shares._share
_COMMIT = attempt.Attempt.commit
_FINAL = answers.final_measurements

MUTANTS: dict[str, Patch] = {
    "a merge that writes over another's commit": (merge, "try_commit", _commit_over),
    "a worker that commits over others": (attempt.Attempt, "commit", _commit_twice),
    "the first try answers, good or not": (answers, "final_measurements", _final_by_order),
    "failures are no answers": (answers, "final_measurements", _final_forgets),
    "a merge that never has nothing to do": (merge._Step, "is_nothing", property(_no_difference)),
    "a quarantine of every node": (NodeFailures, "quarantined", _quarantines_all),
    "each wave takes every device": (job_shares, "_share", _everyone_at_once),
    "a campaign that is finished when it pleases": (decision, "ending", _nothing_left),
    "a gang that is narrowed": (job_shares, "_share", _as_many_as_left),
    "a gang that waits for a lost node": (findings.Findings, "is_broken", _waits_for_it),
}


# Settings that detect a defect soon: two merges at once are rare without merges by users.
# And gangs occur only in simulations that request them.
EXPECTED = {
    "a merge that writes over another's commit": ("people=20",),
    "a gang that is narrowed": ("gangs=4",),
    "a gang that waits for a lost node": ("gangs=4", "node_losses=3"),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Replace the code under test with this defect."""
    where, attribute, other = MUTANTS[name]
    with patch.object(where, attribute, other):
        yield
