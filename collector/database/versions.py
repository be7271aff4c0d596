"""The properties of a version directory: its stack and its op_mapping, each by the highest plan."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from collector.codec.canonical import canonical_json
from collector.model.plan import Plan
from collector.model.stack import Stack

Rank = tuple[int, int, str]
_OF_IMPORTS = -1  # below every commit


def plan_rank(plan: Plan) -> Rank:
    """Return the rank of a plan. If two plans differ on one case, the plan with the greater rank is
    used. Imported plans have the lowest ranks: a version directory shows the stack of what was
    measured, whichever came first."""
    if plan.stack.is_imported:
        return (_OF_IMPORTS, plan.number, plan.plan_hash)
    return (plan.head_commit, plan.number, plan.plan_hash)


@dataclass(frozen=True, slots=True, order=True)
class Ranked:
    """A text and the rank of its plan."""

    rank: Rank
    text: str


@dataclass(frozen=True, slots=True)
class VersionProperties:
    """The properties of one version directory: the stack and the op_mapping of the highest plan."""

    stack: Ranked  # canonical JSON of the stack
    op_mapping: Ranked | None

    def join(self, other: "VersionProperties") -> "VersionProperties":
        mappings = [m for m in (self.op_mapping, other.op_mapping) if m is not None]
        return VersionProperties(
            stack=max(self.stack, other.stack),
            op_mapping=max(mappings, default=None),
        )

    @property
    def shown_stack(self) -> Stack:
        return Stack.from_json(json.loads(self.stack.text))


def shows(versions: Mapping[str, VersionProperties], stack: Stack) -> bool:
    """Return whether the version directory of a stack exists and shows exactly this stack."""
    version = versions.get(stack.version_path)
    return version is not None and version.shown_stack.stack_id == stack.stack_id


def version_of(plan: Plan) -> VersionProperties:
    """Return the properties of the version directory according to one plan."""
    rank = plan_rank(plan)
    return VersionProperties(
        stack=Ranked(rank, canonical_json(plan.stack.as_json()).decode()),
        op_mapping=None if plan.op_mapping is None else Ranked(rank, plan.op_mapping),
    )
