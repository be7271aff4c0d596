"""`opmeter run` on machines without a cluster, concurrently with `opmeter db merge`: the executor,
its workers and the merge are the real ones."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from collector.codec.errors import BadInput, OpmeterError
from collector.database.merge import CREATE, merge_plans
from collector.model.plan import Plan
from collector.store.base import Store
from collector.store.waiting import PatientStore
from jobs.campaign.campaign_file import RunOptions, campaign_from_text
from jobs.executor.local_run import LocalRun
from jobs.planning.lifecycle import next_plan, publish_measured, read_state
from jobs.planning.stored_plans import committed_shards, plan_numbers
from tests.attack.simulation.campaigns import Expected
from tests.attack.simulation.device import STACK, Node
from tests.attack.simulation.process import Process
from tests.attack.simulation.storage import Depot
from tests.attack.simulation.workers import starter

_PATIENCE_S = 600.0
# Errors that a user may get though nothing is wrong with the campaign.
_FORESEEN = ("was just written by another run",)


class Machine:
    """One machine where users run campaigns, one command at a time."""

    def __init__(self, depot: Depot, node: Node, folder: Path):
        self.depot, self.node, self._folder = depot, node, folder
        self.process: Process | None = None
        self.ended: dict[str, str] = {}  # campaign -> how its last command ended
        self._final: set[str] = set()

    @property
    def is_free(self) -> bool:
        return self.process is None or self.process.over.is_set()

    def is_final(self, name: str) -> bool:
        """Return whether the last run of a campaign had its final settings."""
        return name in self._final

    def run(self, expected: Expected, options: RunOptions, *, final: bool) -> None:
        """Plan, measure here and merge."""
        if final:
            self._final.add(expected.name)
        self._begin(
            f"run {expected.name}", expected.name, lambda p: self._run(p, expected, options)
        )

    def merge(self, expected: Expected, *, allow_missing: bool) -> None:
        """Run `opmeter db merge` for all plans of a campaign."""
        self._begin(
            f"merge {expected.name}",
            expected.name,
            lambda p: self._merge(p, expected, allow_missing),
        )

    def _begin(self, what: str, name: str, call: Callable[[Process], str]) -> None:
        world, faults = self.depot.world, self.depot.faults
        process = Process(world, f"{self.node.name}: {what}", skewed=faults.skewed)
        self.process, self.ended[name] = process, ""

        def main() -> None:
            try:
                self.ended[name] = call(process)
            except BadInput as error:
                self.ended[name] = f"2: {error}"
                if not any(words in str(error) for words in _FORESEEN):
                    world.broken(f"{process.name}: {error}")
            except (OpmeterError, OSError) as error:
                self.ended[name] = f"1: {error}"
            world.say(f"{process.name}: {self.ended[name]}")

        process.begin(main)

    def _run(self, process: Process, expected: Expected, options: RunOptions) -> str:
        bare = self.depot.reach(process, self.node.name)
        store = PatientStore(bare, _PATIENCE_S)
        store.put(expected.source_key, expected.table)
        campaign = campaign_from_text(expected.text, path="campaign.yaml", base=Path("/"))
        state = read_state(campaign, store, STACK)
        planned = next_plan(state, lambda: CREATE, options, process.world.say)
        plan = planned.plan
        done = committed_shards(store, expected.name)
        missing = [shard.shard_id for shard in plan.shards if shard.shard_id not in done]
        if missing:
            with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                self._measure(process, store, bare, plan, Path(scratch), missing)
        publish_measured(planned, CREATE, options)
        return "0"

    def _measure(
        self,
        process: Process,
        store: Store,
        bare: Store,
        plan: Plan,
        scratch: Path,
        missing: list[str],
    ) -> None:
        LocalRun(
            store=store,
            watched=bare,
            plan=plan,
            scratch=scratch,
            devices=range(plan.devices),
            stop=process.stop,
            on_progress=lambda shard, done: None,
            on_finished=lambda shard: None,
            start=starter(process, self.depot, self.node),
        ).measure(missing)

    def _merge(self, process: Process, expected: Expected, allow_missing: bool) -> str:
        store = PatientStore(self.depot.reach(process, self.node.name), _PATIENCE_S)
        plans = [(expected.name, number) for number in plan_numbers(store, expected.name)]
        if not plans:
            return "2: nothing was planned"
        found = merge_plans(
            store, plans, guard=CREATE, author="somebody", allow_missing=allow_missing
        )
        return "3" if found.missing and not allow_missing else "0"
