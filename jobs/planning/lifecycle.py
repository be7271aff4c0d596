"""The life of a campaign's plans: continue a plan, make the next one, or stop.

`run`, `plan`, `launch` and the controller all ask here which plan is next. `read_state` reads what
the answer depends on, `decide` gives it, and `make_next` makes the plan without writing it.
`next_plan` does the rest on this machine: it also merges what is due first and stores the plan.
`run_plans` does so until nothing is left to measure.

A plan belongs to the campaign while its inputs (sources, settings, stack) are the campaign's. The
newest such plan is continued until all of it is committed and merged. Otherwise the next plan is
made. Committed results of older plans are merged first, so that no measurement is lost and none is
made twice. Committed but damaged results are measured again by a separate plan; those of older
plans if no later plan has measured their cases. Cases that only sessions with suspect canaries
measured are also measured again, once.
"""

import getpass
import platform
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from collector.codec.canonical import sha256_hex
from collector.codec.errors import AlreadyExists, BadInput
from collector.database.commits import Commit, head_to_extend
from collector.database.head_content import HeadContent, HeldShards
from collector.database.layout import OP_MAPPING
from collector.database.merge import Guard, MergeResult, merge_plans
from collector.database.op_mapping import check_op_mapping
from collector.database.plans import Damage
from collector.database.reuse import Reuse, store_reuse
from collector.database.shard_commits import shard_usage
from collector.database.versions import plan_rank
from collector.environment import map_concurrently
from collector.model import keys
from collector.model.manifest import Usage
from collector.model.plan import AGAIN_SHARE, Plan, plan_to_json
from collector.model.stack import Stack
from collector.ops.own import find_operator
from collector.store.base import AT_ONCE, Store, create_named, create_once
from jobs.campaign.campaign_file import Campaign, RunOptions
from jobs.campaign.target import resolve_stack
from jobs.planning import stored_plans
from jobs.planning.candidates import HeadResult, OldDurations
from jobs.planning.damage import (
    DamageReport,
    cases_of_damaged_shards,
    damage_outside,
    may_remeasure,
    outside,
    remeasurements,
)
from jobs.planning.plan_cases import PlanRequest
from jobs.planning.plan_making import inputs_hash, make_plan
from jobs.planning.sources import LoadedSource, load_sources, op_mapping_of
from jobs.planning.stored_plans import StoredPlans
from jobs.planning.upgrades import KernelSample, check_upgrade

_LEARNED_SHARDS = 32  # whose overheads a forecast is made with
_FOR_SUSPECTS = re.compile(r"\d+d")  # the round for cases of suspect sessions


@dataclass(frozen=True, slots=True)
class PlanningState:
    """Everything that is read before the next step is decided.

    `damage` is what merges have found of the campaign's committed shards."""

    campaign: Campaign
    sources: tuple[LoadedSource, ...]
    stack: Stack
    op_mapping: str | None
    stored: StoredPlans
    committed: frozenset[str]
    content: HeadContent
    held_shards: HeldShards  # of the campaign, for any head
    damage: tuple[Damage, ...] = ()

    @property
    def head(self) -> Commit | None:
        """Return the database's newest commit at the time of reading."""
        return self.content.commit

    @property
    def held(self) -> frozenset[str]:
        """Return the campaign's shards that this head holds."""
        return self.held_shards.at(self.head)

    @property
    def inputs_hash(self) -> str:
        """Return the hash that plans with the campaign's inputs have."""
        planned = [source.planned for source in self.sources]
        return inputs_hash(self.campaign, self.stack, planned, self.op_mapping)

    @property
    def own_plans(self) -> list[Plan]:
        """Return the readable plans with the campaign's inputs, oldest first."""
        inputs = self.inputs_hash
        return [plan for plan in self.stored.plans if plan.inputs_hash == inputs]

    @property
    def mergeable(self) -> tuple[Plan, ...]:
        """Return the readable plans that can be merged together: those of the campaign's stack."""
        stack_id = self.stack.stack_id
        return tuple(plan for plan in self.stored.plans if plan.stack.stack_id == stack_id)


def read_state(
    campaign: Campaign,
    store: Store,
    stack: Stack | None = None,
    op_mapping: str | None = None,
) -> PlanningState:
    """Read the sources, the stack, the campaign's earlier plans and the database's head.

    `stack` is the stack of the machines that will measure, if they are not this one. `op_mapping`
    is the text of the mapping if it was sent with the campaign and not in a file."""
    stack = stack or resolve_stack(campaign)
    sources = load_sources(campaign, store)
    if op_mapping:
        check_op_mapping(op_mapping, path=OP_MAPPING)
    else:
        op_mapping = op_mapping_of(campaign)
    held = HeldShards(store, campaign.name)
    return PlanningState(campaign, sources, stack, op_mapping, *_stored(campaign, held), held)


def read_again(state: PlanningState) -> PlanningState:
    """Return the state with the current content of the store.

    The inputs of the campaign stay as they were read: files are large, and a plan describes them as
    they were when its run began."""
    stored, committed, content = _stored(state.campaign, state.held_shards)
    return replace(state, stored=stored, committed=committed, content=content, damage=())


def _stored(
    campaign: Campaign, held: HeldShards
) -> tuple[StoredPlans, frozenset[str], HeadContent]:
    store = held.store
    stored, committed = (
        stored_plans.find_plans(store, campaign.name),
        stored_plans.committed_shards(store, campaign.name),
    )
    content = HeadContent.of(store, head_to_extend(store))
    plans = content.manifest.plans if content.manifest else ()
    merged = [plan for plan in plans if plan.campaign == campaign.name]
    return (
        stored_plans.unchanged(stored, merged, lambda: held.at(content.commit)),
        committed,
        content,
    )


# The decision. It reads nothing but rows of the head in `state` and shards, which never change.


@dataclass(frozen=True, slots=True)
class Continue:
    """Measure the missing shards of the plan, then merge it with late results of `others`.

    If it `is_finished`, the plan is merged and nothing has changed since."""

    plan: Plan
    others: tuple[int, ...] = ()
    is_finished: bool = False


@dataclass(frozen=True, slots=True)
class NewPlan:
    """Merge the plans `others`, in order, then make the plan of this number.

    `round` separates its shards from earlier ones of the same cases. If `damaged` is set, the plan
    measures only the cases of these shards of the plan `after` again. If `lost` or `suspects` is
    set, it measures only these cases again, each on another device or node than the one given:
    those of damaged shards of plans before `after`, or of suspect sessions."""

    number: int
    others: tuple[int, ...]
    round: str = ""
    after: Plan | None = None
    damaged: tuple[str, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    suspects: Mapping[str, str] = field(default_factory=dict)


Step = Continue | NewPlan


def decide(state: PlanningState, options: RunOptions) -> Step:
    unmergeable, held = {damage.shard for damage in state.damage}, state.held
    left_out = {
        plan.number: [shard.shard_id for _, shard in outside([plan], state.committed, held)]
        for plan in state.stored.plans
    }
    late = tuple(number for number, shards in left_out.items() if set(shards) - unmergeable)
    number, own = state.stored.last + 1, state.own_plans
    is_requested = options.again or options.retry_failed
    if options.upgrade_from is not None and own:  # a plan of another upgrade is not continued
        is_requested = is_requested or own[-1].upgrade_from != options.upgrade_from
    if is_requested or not own:
        # A shard of the same cases must not replace one that cannot be merged, or one of a plan
        # that cannot be read. A plan for precision measures cases that have results.
        is_separate = is_requested or state.stored.damaged or any(left_out.values())
        is_separate = is_separate or state.campaign.update == "precision"
        return NewPlan(number, late, str(number) if is_separate else "")
    newest = own[-1]
    others = tuple(other for other in late if other != newest.number)
    if newest.beyond(state.committed) or newest.number in late:
        return Continue(newest, others)
    if broken := tuple(left_out[newest.number]):
        if not may_remeasure(newest):
            return Continue(newest, others, is_finished=True)
        return NewPlan(number, others, _round_of_damage(number, newest), newest, damaged=broken)
    if may_remeasure(newest) and (lost := lost_cases(state, newest)):
        return NewPlan(number, others, _round_of_damage(number, newest), newest, lost=lost)
    if newest.forecast.learning:
        return NewPlan(number, others, str(number))
    if _may_repeat_suspects(own) and (suspects := suspect_cases(state)):
        return NewPlan(number, others, f"{number}d", newest, suspects=suspects)
    return Continue(newest, others, is_finished=True)


def _round_of_damage(number: int, newest: Plan) -> str:
    return f"{number}m{remeasurements(newest) + 1}"


def lost_cases(state: PlanningState, newest: Plan) -> Mapping[str, str]:
    """Return the cases of damaged shards of plans before the newest that the head has no result of,
    as `cases_to_repeat` returns them. They occur where a database is lost, and made again from the
    results of plans that were made for the lost one."""
    broken = {damage.shard for damage in state.damage if damage.shard} - state.held
    found: dict[str, str] = {}
    if not broken:
        return found
    expected = frozenset(_required_cases(state)) - read_head_results(state).keys()
    for plan in state.mergeable:
        if plan.number < newest.number:
            owed = cases_of_damaged_shards(state.content.store, plan, broken, expected)
            found |= {case: place for case, place in owed.items() if case in expected}
    return found


def _required_cases(state: PlanningState) -> Iterator[str]:
    operators = state.campaign.operators
    for source in state.sources:
        for record in source.records:
            if operators is None or record.case.kernel_type in operators:
                yield record.case_id


def _may_repeat_suspects(own: Sequence[Plan]) -> bool:
    """Return whether cases of sessions with suspect canaries may be measured again automatically.

    They are, once after each plan that was requested."""
    requested = [plan for plan in own if not remeasurements(plan)]
    if not requested or _FOR_SUSPECTS.fullmatch(requested[-1].round):
        return False
    return any(plan.may_have_canaries for plan in own if plan.number >= requested[-1].number)


def suspect_cases(state: PlanningState) -> Mapping[str, str]:
    """Return the cases that a single, suspect session measured, and the device or node."""
    stack, campaign, content = state.stack, state.campaign, state.content
    if not content.shows(stack):
        return {}
    expected = set(_required_cases(state))
    return content.suspect_once(stack.version_path, expected, cache=campaign.measure.cache)


# The plan of a step.


@dataclass(frozen=True, slots=True)
class NextPlan:
    """The plan to measure.

    Attributes:
        news: one line that describes how the plan was determined.
        damage: all damage that was found.
        tables: the tables of its shards, if the plan is new and not in the store.
        reuse: what a new plan reuses of an older stack.
        samples: the kernels that a new plan samples after an upgrade.
        is_finished: nothing is left to do.
        missing: the number of its shards that are not committed after a run.
        goes_on: another round follows automatically after a run.
        since: the number of the first plan that a run worked on."""

    state: PlanningState
    plan: Plan
    news: str
    damage: DamageReport
    tables: Mapping[str, bytes] | None = None
    reuse: Reuse | None = None
    samples: tuple[KernelSample, ...] = ()
    is_finished: bool = False
    missing: int = 0
    goes_on: bool = False
    since: int = 0


def make_next(state: PlanningState, step: Step, options: RunOptions) -> NextPlan:
    """Return the plan of a step; write nothing."""
    damage = _damage_report(state, step)
    if isinstance(step, Continue):
        number, done = step.plan.number, step.is_finished
        news = (
            f"plan {number} is already measured and merged" if done else f"continuing plan {number}"
        )
        return NextPlan(state, step.plan, news, damage, is_finished=done)
    made = make_plan(_request(state, step, options), find=find_operator)
    news = f"plan {step.number}"
    if step.after is None:
        return NextPlan(state, made.plan, news, damage, made.shards, made.reuse, made.samples)
    before = step.after.number
    if step.suspects:
        purpose = f"results of suspect sessions of plan {before}"
        nothing = "measuring the results of suspect sessions again would take too long"
    elif step.lost:
        purpose = f"damaged results of plans before plan {before}"
        nothing = "the cases of damaged results of earlier plans cannot be measured"
    else:
        purpose, nothing = f"damaged results of plan {before}", ""
    if nothing and not made.plan.shards:
        news = f"plan {before} is measured and merged; {nothing}"
        return NextPlan(state, step.after, news, damage, is_finished=True)
    news += f", for {purpose}"
    return NextPlan(state, made.plan, news, damage, made.shards)


def store_next(store: Store, made: NextPlan) -> None:
    """Write a new plan, after all objects that it names.

    Writing the same plan again is silent.

    Raises:
        BadInput: another run has just written another plan of this number."""
    if made.tables is None:
        return
    plan, tables = made.plan, [source.table for source in made.state.sources]
    sources = [(keys.source(plan.campaign, sha256_hex(table)), table) for table in tables]
    sources += [
        (keys.operator_file(plan.campaign, file.sha256), file.text.encode())
        for file in made.state.campaign.operator_files
    ]
    map_concurrently(lambda entry: create_named(store, *entry), sources, AT_ONCE)
    shards = [(keys.shard(plan.campaign, shard), table) for shard, table in made.tables.items()]
    map_concurrently(lambda entry: create_once(store, *entry), shards, AT_ONCE)
    if made.reuse is not None:
        store_reuse(store, made.reuse)
    try:
        create_once(store, keys.plan(plan.campaign, plan.number), plan_to_json(plan))
    except AlreadyExists as error:
        raise BadInput(
            f"plan {plan.number} of campaign {plan.campaign} was just written by another run; "
            "run the command again to continue that plan"
        ) from error


def _damage_report(state: PlanningState, step: Step) -> DamageReport:
    """Return all damage; what is damaged of plans before the current one is ignored."""
    current = step.after if isinstance(step, NewPlan) else step.plan
    since = state.stored.newest if current is None else current.number
    return DamageReport.of([*state.stored.damaged, *state.damage], since)


def _request(state: PlanningState, step: NewPlan, options: RunOptions) -> PlanRequest:
    old = read_old_durations(state, options)
    measured = read_head_results(
        state, retry_failed=options.retry_failed, with_intervals=old is not None
    )
    # The last round: the newest plan that does not repeat damaged results.
    rounds = [plan for plan in state.own_plans if not remeasurements(plan)]
    before = rounds[-1].forecast if rounds else None
    return PlanRequest(
        campaign=state.campaign,
        number=step.number,
        head_commit=state.head.number if state.head else 0,
        round=step.round,
        stack=state.stack,
        sources=tuple((source.planned, source.records) for source in state.sources),
        head_results=measured,
        op_mapping=state.op_mapping,
        retry_failed=options.retry_failed,
        again=options.again,
        cases_to_repeat=_owed(state, step, measured),
        repeat_budget_s=AGAIN_SHARE * before.device_s if step.suspects and before else inf,
        before=before,
        usages=_usages(state),
        old=old,
    )


def read_old_durations(state: PlanningState, options: RunOptions) -> OldDurations | None:
    """Return the durations of the older stack that the next plan may reuse: of the one that is
    requested, or that the newest plan was made for. None to measure every case again.

    Raises BadInput if the database has no such version directory."""
    own, content = state.own_plans, state.content
    source = options.upgrade_from or (own[-1].upgrade_from if own else None)
    if source is None or options.again:
        return None
    path = source.version_path
    check_upgrade(state.campaign, state.stack, path, sorted(content.versions))
    expected = {record.case_id for source in state.sources for record in source.records}
    stack_id = content.versions[path].shown_stack.stack_id
    return OldDurations(source, stack_id, content.intervals(path, expected))


def _usages(state: PlanningState) -> tuple[Usage, ...]:
    """Return the usages of the last committed shards of single devices on this stack."""
    shards = [
        (plan.campaign, shard.shard_id)
        for plan in state.mergeable
        for shard in plan.shards
        if shard.shard_id in state.committed and not shard.is_gang
    ][-_LEARNED_SHARDS:]
    store = state.content.store
    return tuple(map_concurrently(lambda shard: shard_usage(store, *shard), shards, AT_ONCE))


def _owed(
    state: PlanningState, step: NewPlan, measured: Collection[str]
) -> Mapping[str, str] | None:
    """Return the cases of a plan that only repeats damaged or suspect measurements.

    Each has the device or node that must not measure it. Return None for any other plan."""
    if step.after is None:
        return None
    if step.suspects or step.lost:
        return step.suspects or step.lost
    known = (record.case_id for source in state.sources for record in source.records)
    is_open = step.after.update != "missing-only"
    expected = frozenset(case for case in known if is_open or case not in measured)
    return cases_of_damaged_shards(state.content.store, step.after, step.damaged, expected)


def read_head_results(
    state: PlanningState, *, retry_failed: bool = False, with_intervals: bool = False
) -> Mapping[str, HeadResult]:
    """Return the results of the sources' cases in the head for this stack, by case.

    A measurement that is held back, so that its version shows no duration, counts as a failure if
    failures are requested or if durations train a surface model."""
    stack, content, campaign = state.stack, state.content, state.campaign
    if not content.shows(stack):
        return {}
    expected = {record.case_id for source in state.sources for record in source.records}
    known = content.case_results(stack.version_path, expected, cache=campaign.measure.cache)
    counts_held_back = retry_failed or campaign.sampling is not None
    needs_intervals = counts_held_back or with_intervals or campaign.update == "precision"
    shown = content.intervals(stack.version_path, expected) if needs_intervals else {}
    held_back = set[str]()
    if counts_held_back:
        held_back = {case for case in known if case not in shown}
    return {
        case: HeadResult(
            found.is_good and case not in held_back,
            found.mean_us,
            shown.get(case),
            found.is_suspect,
        )
        for case, found in known.items()
    }


# The whole way on one machine: merge, make and store the plan.


def next_plan(
    state: PlanningState,
    guard: Callable[[], Guard],
    options: RunOptions,
    say: Callable[[str], None],
) -> NextPlan:
    """Return the next plan, stored if it is new.

    Commits of other plans that can be merged are merged before. `guard` is called before the first
    write: by then all input is read and validated as far as possible. Unreadable parts are
    reported.

    Raises:
        BadInput: the version directory contains another stack; before anything is measured."""
    check_can_merge(state, supersede_stack=options.supersede_stack)
    step = decide(state, options)
    if not isinstance(step, NewPlan):
        _check_rank(state, step.plan)
    if due := _due(state, step, say):
        merged = _publish(state, due, guard(), options)
        found = (*state.stored.damaged, *merged.damaged)
        state = replace(read_again(state), damage=found)
        step = decide(state, options)
    for line in _damage_report(state, step).lines():
        say(line)
    made = make_next(state, step, options)
    if made.tables is not None:
        guard()
        store_next(state.content.store, made)
    return made


def preview(state: PlanningState, options: RunOptions, say: Callable[[str], None]) -> NextPlan:
    """Return the next plan as far as it is known without a merge; write nothing."""
    store = state.content.store
    found = damage_outside(store, state.mergeable, state.committed, state.held)
    state = replace(state, damage=tuple(found))
    step = decide(state, options)
    for line in _damage_report(state, step).lines():
        say(line)
    if _due(state, step, say):
        say("results that are not merged yet would be merged first; nothing is done now")
    return make_next(state, step, options)


def run_plans(
    state: PlanningState,
    guard: Callable[[], Guard],
    options: RunOptions,
    view: Callable[[str], None],
    measure: Callable[[NextPlan], int],
    is_stopped: Callable[[], bool],
) -> NextPlan:
    """Return the last plan, after measuring and merging plan after plan.

    `measure` returns how many shards of a plan it has not committed: then the run ends. If surfaces
    are learned, plans follow each other until they are known; the measurements of suspect sessions
    are repeated by another plan."""
    since = 0
    while True:
        say = _once(view)
        made = next_plan(state, guard, options, say)
        since = since or made.plan.number
        made = replace(made, since=since)
        view(made.news)
        missing = measure(made)
        if missing or made.is_finished:
            return replace(made, missing=missing)
        view("merging")
        made = publish_measured(made, guard(), options)
        for line in made.damage.lines():
            say(line)
        if not made.goes_on or is_stopped():
            return made
        # The next round differs only in what it has learned.
        options = replace(options, again=False, retry_failed=False)
        state = made.state


def _once(say: Callable[[str], None]) -> Callable[[str], None]:
    reported = set[str]()

    def once(line: str) -> None:
        if line not in reported:
            reported.add(line)
            say(line)

    return once


def publish(
    store: Store,
    campaign: str,
    plans: Iterable[int],
    guard: Guard,
    *,
    supersede_stack: bool,
    allow_missing: bool = True,
) -> MergeResult:
    """Merge what these plans have committed, with the current user as author.

    A merge skips everything that the head already has."""
    return merge_plans(
        store,
        [(campaign, number) for number in sorted(plans)],
        guard=guard,
        author=current_author(),
        supersede_stack=supersede_stack,
        allow_missing=allow_missing,
    )


def current_author() -> str:
    """Return the current user and host, for readers of the log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's uid may have no name
        user = "unknown"
    return f"{user}@{platform.node()}"


def _publish(
    state: PlanningState, plans: Iterable[int], guard: Guard, options: RunOptions
) -> MergeResult:
    store, name = state.content.store, state.campaign.name
    return publish(store, name, plans, guard, supersede_stack=options.supersede_stack)


def publish_measured(made: NextPlan, guard: Guard, options: RunOptions) -> NextPlan:
    """Merge a plan that is measured. Return it with the state and the damage afterwards, and
    whether it `goes_on`.

    One follows if all of this round is published, and surfaces are not learned yet, or cases of
    suspect sessions or of damaged results of earlier plans are measured again."""
    before, plan = made.state, made.plan
    together = {*(other.number for other in before.mergeable), plan.number}
    merged = _publish(before, together, guard, options)
    damage = DamageReport.of([*before.stored.damaged, *merged.damaged], plan.number)
    state = replace(read_again(before), damage=merged.damaged)
    step = decide(state, RunOptions())
    repeats = isinstance(step, NewPlan) and bool(step.suspects or step.lost)
    follows = plan.forecast.learning > 0 or repeats
    return replace(made, state=state, damage=damage, goes_on=follows and not damage.needed)


def _due(state: PlanningState, step: Step, say: Callable[[str], None]) -> list[int]:
    """Return the plans that must be merged before the next step can be determined.

    A plan that still lacks shards is merged when it has them, with all late commits."""
    expected = set(step.others)
    if isinstance(step, Continue) and not step.is_finished:
        is_open = bool(step.plan.beyond(state.committed))
        expected = set() if is_open else expected | {step.plan.number}
    own = [plan.number for plan in state.mergeable if plan.number in expected]
    for other in sorted(expected.difference(own)):
        say(
            f"plan {other} was measured on another stack and is not merged; to publish it: "
            f"opmeter db merge {state.campaign.name} --plan {other} --supersede-stack"
        )
    return own


def check_can_merge(state: PlanningState, *, supersede_stack: bool) -> None:
    """Raise BadInput if the results could not be merged at the end."""
    stack, content = state.stack, state.content
    version = content.versions.get(stack.version_path)
    if version is None or supersede_stack or content.shows(stack):
        return
    if version.shown_stack.is_imported:  # it has no measurements of another stack
        return
    raise BadInput(
        f"{stack.version_path} holds results of another stack (they differ in "
        f"{stack.differs_in(version.shown_stack)}); measure into another --root, or pass "
        "--supersede-stack to show this stack instead"
    )


def _check_rank(state: PlanningState, plan: Plan) -> None:
    """Raise BadInput if a version shows another stack whatever this plan measures.

    That is so if this plan is older than the plan whose stack the version shows."""
    version = state.content.versions.get(plan.stack.version_path)
    if version is None or state.content.shows(plan.stack) or plan_rank(plan) > version.stack.rank:
        return
    raise BadInput(
        f"--supersede-stack would change nothing: {plan.stack.version_path} shows another stack "
        f"(they differ in {plan.stack.differs_in(version.shown_stack)})"
        ", in a plan newer than plan "
        f"{plan.number}; pass --again too, which makes a new plan"
    )
