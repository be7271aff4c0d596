"""`opmeter measure`: given cases, measured now, on one stack or on two that take turns."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput, NoDevice
from collector.codec.text import counted
from collector.model.measurement import ISOLATED
from collector.model.stack import BACKENDS, Stack
from jobs.cli.opening import choose_guard, declare_operators, open_bare, patient
from jobs.cli.options import (
    DatabaseRootOption,
    JsonOption,
    OperatorsOption,
    SingleWriterOption,
    SupersedeOption,
    check_backend,
    share_of_option,
)
from jobs.cli.query import written_cases
from jobs.cli.terminal import print_json, say, stop_on_signals

if TYPE_CHECKING:
    from collector.database.merge import Guard
    from collector.model.plan import MeasureSettings
    from collector.model.record import CaseRecord
    from collector.ops.own import OperatorFile
    from jobs.cli.diff import ChosenSide
    from jobs.executor.alternating import SessionCount, Side
    from jobs.executor.environments import MeasuredEnvironment

_NO_DURATION, _NOT_COMMITTED = 1, 3
_BUDGET_S = 0.5  # of a case in a session: more sessions narrow an interval more than more repeats
_TIME_S = 90.0  # of two minutes, with what precedes and follows the sessions


def measure_command(
    cases: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CASE...",
            help="case, such as 'MatMulV2 4096,5120;5120,6400 bf16', also as JSON; with --file a "
            "kernel type",
        ),
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            help="file of cases: lines of text or JSON, a profile, or a CSV with columns of a tree"
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(help="npu, cuda, cpu or events  [default: the first of npu, cuda, cpu here]"),
    ] = None,
    environments: Annotated[
        list[str] | None,
        typer.Option(
            "--environment",
            help="virtual environment, Python, or script to source (set_env.sh) to measure in; "
            "given twice, their sessions take turns and are compared  [default: this one]",
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="case to compare with: another kernel of the same result")
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="version of the database to compare with, its directory of a stack, or 3:DIRECTORY"
        ),
    ] = None,
    operators: OperatorsOption = None,
    margin: Annotated[
        str, typer.Option(help="share of a duration within which two are equal")
    ] = "5%",
    sessions: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=100,
            help="number of sessions of each side  [default: as many as fit into --time, 2 to 5; "
            "4 to 12 if two are compared]",
        ),
    ] = None,
    time_s: Annotated[
        float, typer.Option("--time", min=1.0, help="seconds that all sessions may take")
    ] = _TIME_S,
    cold: Annotated[
        bool, typer.Option("--cold", help="flush the device's cache before each repeat")
    ] = False,
    root: DatabaseRootOption = "opmeter-data",
    single_writer: SingleWriterOption = False,
    supersede_stack: SupersedeOption = False,
    as_json: JsonOption = False,
) -> int:
    """Measure cases now, and print their durations with 95 % intervals.

    Each session is a process of its own, so that the intervals have what differs from session to
    session. Results are stored in the database, where `opmeter query` finds them. Two
    environments, or two kernels, are measured in turns: the ratio of their durations has changed,
    is equal within --margin, or the finding is inconclusive. The exit code is 1 if a case has no
    duration.

    \b
    Examples:
      opmeter measure "MatMulV2 4096,5120;5120,6400 bf16"
      opmeter measure --file cases.txt --compare torch2.9
      opmeter measure "Add 4096,5120;4096,5120 bf16" --environment old/ --environment new/
      opmeter measure "MatMulV2 64,512;512,64 bf16" --against "MatMulV3 64,512;512,64 bf16"
      opmeter measure "MyKernel 64,512 fp32" --operators my_ops.py
    """
    from collector.model.plan import MeasureSettings
    from jobs.campaign.campaign_file import RunOptions
    from jobs.cli.measured import Measured
    from jobs.cli.progress_view import view_for
    from jobs.executor import alternating

    share = share_of_option("--margin", margin, below=1)
    if not share < 1:
        raise BadInput(f"--margin: expected a share below 100 %, got {margin!r}")
    if backend is not None:
        check_backend(backend, known=BACKENDS)
    named = environments or []
    if len(named) > 2:
        raise BadInput(f"--environment: expected at most two, got {len(named)}")
    if against is not None and len(named) > 1:
        raise BadInput("--against excludes a second --environment")
    settings = MeasureSettings(budget_s=_BUDGET_S, cache=ISOLATED[1] if cold else ISOLATED[0])
    files = declare_operators(operators)
    parts = _parts(cases or [], file, against, named)
    with view_for(sys.stderr.isatty(), "result") as view:
        stop = stop_on_signals(view.say)
        opener = _Opener(backend, settings, root, single_writer, files)
        sides = opener.sides(parts)
        before = None if compare is None else _compared_with(root, compare, sides)
        count = alternating.SessionCount(len(sides) > 1, time_s, sessions)
        for line in _about(sides, count):
            view.say(line)

        @cache
        def guard_of(url: str) -> Guard:
            return choose_guard(open_bare(url), single_writer=single_writer)

        options = RunOptions(again=True, supersede_stack=supersede_stack)
        guards = (lambda store: guard_of(store.url), options)
        done = alternating.measure_sides(sides, count, *guards, view, stop)
    for line in dict.fromkeys(line for own in done for one in own for line in one.damage):
        say(line, err=True)
    if not done[0]:
        say("stopped before a session ended: nothing is stored", err=True)
        return _NOT_COMMITTED
    found = Measured(sides, done, share, before)
    if as_json:
        print_json(found.as_json())
    else:
        found.print()
    if stop.is_set():
        say(f"stopped after {counted(len(done[0]), 'session')} of each side", err=True)
    return _NOT_COMMITTED if stop.is_set() else _NO_DURATION if found.lacking else 0


def _about(sides: Sequence[Side], count: SessionCount) -> Iterator[str]:
    """Yield what is measured, where, and for how long."""
    from jobs.status.lines import duration

    for side in sides:
        about = f"{side.name}: " if len(sides) > 1 else ""
        yield f"{about}{_stack_text(side.stack)}; store {side.store.url}"
    cases = len(sides[0].records)
    how_many = "" if count.given else "; the first shows how many fit into the time"
    yield f"measuring {counted(cases, 'case')} in short sessions{how_many}"
    if (least_s := _BUDGET_S * cases) * len(sides) * 2 > count.time_s:
        each = f"each session takes at least {duration(least_s)}"
        yield f"{each}, and the command longer than --time; a campaign needs fewer sessions"


# The sides: cases, environments, stores.

_Part = tuple[str, "tuple[CaseRecord, ...]", str | None]  # name, cases, environment


def _parts(
    texts: Sequence[str], file: Path | None, against: str | None, named: Sequence[str]
) -> list[_Part]:
    """Return the cases of each side, and its environment."""
    from jobs.planning.sources import completed_records
    from opmeter.written_cases import records_of

    records = completed_records(records_of(written_cases(texts, file, {}), file))
    if against is None:
        names = [Path(one).name or one for one in named]
        if len(set(names)) < len(names):
            names = [f"{one} ({number})" for number, one in enumerate(names, start=1)]
        within = zip(names, named, strict=True)
        return [(name, records, one) for name, one in within] or [("here", records, None)]
    if len(records) > 1:
        raise BadInput(f"--against: expected one case to compare, got {len(records)}")
    others = completed_records(records_of(written_cases([against], None, {})))
    if others[0].case_id == records[0].case_id:
        raise BadInput("--against: expected another case, got the same")
    place = named[0] if named else None
    kernels = [one[0].kernel_type for one in (records, others)]
    names = kernels if len(set(kernels)) == 2 else ["case", "other case"]
    return [(names[0], records, place), (names[1], others, place)]


@dataclass(frozen=True, slots=True)
class _Opener:
    """Makes sides of their parts."""

    backend: str | None
    measure: MeasureSettings
    root: str
    single_writer: bool
    operators: tuple[OperatorFile, ...]

    def sides(self, parts: Sequence[_Part]) -> list[Side]:
        """Return the sides. Another environment has a store of its own if its results would be in
        the version directory of the first. Raises BadInput for cases that cannot be measured."""
        from collector.host.stack import local_stack
        from jobs.executor.alternating import Side

        backend = self.backend or _backend_here()
        found: list[Side] = []
        for place, (name, records, within) in enumerate(parts):
            check_measurable(records, backend)
            environment = _opened_environment(within)
            read = local_stack if environment is None else environment.stack
            stack = read(backend)
            url = self.root
            if (
                found
                and found[0].stack.version_path == stack.version_path
                and within != parts[0][2]
            ):
                url = f"{self.root.rstrip('/')}-b"
            bare = open_bare(url, single_writer=self.single_writer)
            stores = patient(bare), patient(bare, patience_s=0.0)
            about = (backend, stack, self.measure, environment)
            found.append(Side(name, place, records, *about, *stores, self.operators))
        return found


def _backend_here() -> str:
    """Return the backend of this machine's devices: npu, cuda, or else cpu."""
    from collector.host.stack import device_locks

    for name in ("npu", "cuda"):
        with suppress(NoDevice):
            device_locks(name)
            return name
    return "cpu"


@cache
def _opened_environment(name: str | None) -> MeasuredEnvironment | None:
    from jobs.executor.environments import environment_of

    if name is None:
        return None
    found = environment_of(name)
    found.check()
    return found


def check_measurable(records: Sequence[CaseRecord], backend: str) -> None:
    """Raise BadInput if none of the cases can be measured, with the reason of the first."""
    from collector.ops.own import find_operator
    from collector.ops.refusals import refusal_on_ranks

    refusals = [refusal_on_ranks(one.case, find_operator, backend, 1) for one in records]
    if (first := refusals[0]) is not None and None not in refusals:
        more = f" (and {len(refusals) - 1:,} more)" if len(refusals) > 1 else ""
        raise BadInput(f"cannot be measured on backend {backend}{more}: {first.reason}")


def _stack_text(stack: Stack) -> str:
    parts = (("torch", stack.torch), ("CANN", stack.cann), ("vLLM-Ascend", stack.vllm))
    return ", ".join([stack.device, *(f"{name} {text}" for name, text in parts if text)])


def _compared_with(root: str, text: str, sides: Sequence[Side]) -> ChosenSide:
    """Return the version of --compare. Raises BadInput if it does not exist, or if two sides are
    compared already."""
    from jobs.cli.diff import chosen_side

    if len(sides) > 1:
        raise BadInput("--compare excludes --against and a second --environment")
    found = chosen_side(root, text)
    path = sides[0].stack.version_path
    if found.directory is None and path not in found.manifest.versions:
        there = ", ".join(sorted(found.manifest.versions))
        raise BadInput(f"--compare {text}: expected a version with {path}, got one with {there}")
    return found
