"""Passes with calls as often as a test says, in any order."""

from collections.abc import Sequence
from dataclasses import dataclass

from collector.workloads.call_order import CallKind, CallOrder, PassCall
from collector.workloads.recorded_step import Prompts, RecordedLaunch, RecordedMessage, RecordedPass


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A launch or a message, how often it is made, and how often in layers that draft tokens."""

    what: RecordedLaunch | RecordedMessage
    times: int
    drafts: int = 0


@dataclass(frozen=True, slots=True)
class Made:
    phase: str
    requests: int
    queries: int
    keys: int
    launches: Sequence[MadeCall]
    messages: Sequence[MadeCall] = ()
    prompts: Prompts | None = None

    def recorded(self) -> RecordedPass:
        tables = ((CallKind.LAUNCH, self.launches), (CallKind.MESSAGE, self.messages))
        calls, drafts = [], [PassCall(CallKind.DRAFT, 0, 0)]
        for kind, table in tables:
            for at, one in enumerate(table):
                calls += [PassCall(kind, 0, at)] * one.times
                drafts += [PassCall(kind, 0, at)] * one.drafts
        drafts.append(PassCall(CallKind.DRAFT_END, 0, 0))
        return RecordedPass(
            *(self.phase, self.requests, self.queries, self.keys, self.prompts),
            *(tuple(one.what for one in table) for _, table in tables),
            *((), (), CallOrder.of([*calls, *drafts])),
        )
