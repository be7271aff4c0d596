"""The complete output of `opmeter status` for one campaign."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

from collector.codec.errors import BadInput, DamagedObject, NotFound, StoreError
from collector.database.commits import Commit, Log, readable_log
from collector.database.head_content import HeldShards
from collector.database.plans import MergedPlan
from collector.database.snapshot import load_state
from collector.model import keys
from collector.model.record import CaseRecord, read_table
from collector.store.base import Store
from jobs.objects.applied_campaign import applied_from
from jobs.objects.waves import NodeFailures
from jobs.planning.sources import completed_records
from jobs.planning.stored_plans import stored_node_failures
from jobs.status import lines as status_lines
from jobs.status.follower import Follower
from jobs.status.plan_status import PlanStatus, devices_measuring
from jobs.status.summary import summarise_state
from jobs.status.why import ClusterObjects, ClusterView, explain, running_pods


class CampaignStatus:
    """The status of one campaign. `lines` may be called repeatedly, and sets `plans` to what it has
    read and `is_finished`. Unless it is `deep`, no part is read, and there are no lines about
    cases."""

    def __init__(self, store: Store, campaign: str, view: ClusterView):
        self._store, self._campaign, self._view = store, campaign, view
        self.follower, self._held = Follower(store), HeldShards(store, campaign)
        self.plans: Sequence[PlanStatus] = ()
        self.is_finished = False

    def lines(self, bars: int = 0, *, deep: bool = True) -> Iterator[str]:
        seen, node_failures = self._view.seen(), NodeFailures()
        try:
            node_failures = yield from self._of_store(seen, bars, deep=deep)
        except StoreError as error:  # the cluster's view shows what the pods do meanwhile
            self.is_finished = False
            yield f"store       not available: {error}"
        if seen:
            yield from explain(replace(seen, quarantined=self._view.quarantined(node_failures)))
        if self._view.trouble:
            yield f"cluster     {self._view.trouble}"

    def _of_store(
        self, seen: ClusterObjects | None, bars: int, *, deep: bool
    ) -> Generator[str, None, NodeFailures]:
        """Yield the lines about what the store has; return the failures counted against nodes."""
        log = readable_log(self._store)
        merged, held, trouble = self._head(log)
        plans = self.follower.read(self._campaign, deep=deep, merged=merged, held=held or ())
        self.plans = tuple(plans)
        self.is_finished = held is not None and bool(plans) and _is_merged(plans[-1], held)
        node_failures, harm = self._node_failures()
        at_work = devices_at_work(seen) if seen else 0
        yield from trouble
        texts = self.follower.unreadable(self._campaign)
        if held is not None and deep:  # otherwise it is unknown what is still required
            texts = self.follower.damage(self._campaign, held)
        yield from texts.lines()
        yield from texts.advice(plans[-1].plan if plans else None)
        yield from harm
        for plan in plans:
            yield status_lines.head_line(plan, at_work)
        if plans and deep:
            yield from self._details(plans[-1], bars, log.head, held or frozenset())
        elif not plans and not texts.needed:
            yield f"{self._campaign}: no plan exists yet"
        return node_failures

    def _node_failures(self) -> tuple[NodeFailures, list[str]]:
        """Return the failures counted against nodes, and a line if they cannot be read."""
        try:
            return stored_node_failures(self._store, self._campaign), []
        except BadInput as error:
            return NodeFailures(), [f"damaged     {error}"]

    def _head(self, log: Log) -> tuple[frozenset[MergedPlan], frozenset[str] | None, list[str]]:
        """Return the campaign's plans and shards in the head, and lines about database problems.

        The shards are None if they cannot be read."""
        trouble = [log.warning] if log.warning else []
        if log.warning and log.head is None:
            return frozenset(), None, trouble
        try:
            return self._held.plans_at(log.head), self._held.at(log.head), trouble
        except DamagedObject as error:
            return frozenset(), None, [*trouble, f"damaged     {error.advice}"]

    def _details(
        self, status: PlanStatus, bars: int, head: Commit | None, held: frozenset[str]
    ) -> Iterator[str]:
        plan = status.plan
        yield from status_lines.shard_lines(status)
        yield from status_lines.kernel_lines(status, bars)
        yield from status_lines.share_lines(status)
        yield status_lines.hours_line(status)
        if not _is_merged(status, held):
            yield f"database    {self._store.url}, version {head.number if head else 'none yet'}"
            yield f"stack       {plan.stack.version_path}"
            yield from status_lines.efficiency_lines(status)
            yield from status_lines.failure_lines(status)
            return
        try:
            sources = [_source(self._store, plan.campaign, s.sha256) for s in plan.sources]
        except (BadInput, NotFound) as error:
            yield f"damaged     a source of plan {plan.number}: {error}"
            return
        try:
            state = load_state(self._store, head, paths=[plan.stack.version_path])
        except DamagedObject as error:
            yield f"damaged     {error.advice}"
            return
        summary = summarise_state(state, plan, sources, status.usage)
        yield from status_lines.describe_summary(summary, plan, head, self._store.url)


def _is_merged(status: PlanStatus, held: frozenset[str]) -> bool:
    return status.committed == len(status.plan.shards) and not status.plan.beyond(held)


def devices_at_work(seen: ClusterObjects) -> int:
    """Return how many devices measure on the cluster now; 0 if its ConfigMap cannot be read."""
    try:
        return devices_measuring(running_pods(seen.pods), applied_from(seen.config_map).site)
    except BadInput:
        return 0


def _source(store: Store, campaign: str, sha256: str) -> list[CaseRecord]:
    key = keys.source(campaign, sha256)
    return list(completed_records(read_table(store.get(key), path=key)))
