"""`opmeter query`: the durations of shapes, from the index of a version directory."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from collector.codec.numbers import parse_number
from collector.codec.text import counted
from collector.model.demand import MOST_WEIGHT
from collector.model.vocabulary import (
    INPUT_DTYPES,
    INPUT_FORMATS,
    INPUT_SHAPES,
    KEY_LENGTHS,
    OP_STATE,
    OUTPUT_SHAPES,
)
from jobs.cli import options
from jobs.cli.terminal import print_json, print_table, say, say_lines

if TYPE_CHECKING:
    from jobs.planning.worth import SessionForecast
    from opmeter import Answer, CaseGroup, Explanation, Version
    from opmeter.written_cases import WrittenCase

_KERNEL = "kernel_type"
_MOST_HINTS = 5  # misses of a file
_COLUMNS = ("value_us", "low_us", "high_us", "channel", "support", "warnings", "reason")


def query_command(
    case: Annotated[
        str,
        typer.Argument(
            help="case, such as 'MatMulV2 32,5120;5120,3200 bf16', also as JSON; with --shape or "
            "--file its kernel type",
        ),
    ] = "",
    *,
    shape: Annotated[
        str, typer.Option(help="input shapes, such as '32,5120;5120,3200'", show_default=False)
    ] = "",
    dtype: Annotated[
        str, typer.Option(help="of all inputs, or of each: bf16, 'DT_BF16;INT8'  [default: any]")
    ] = "",
    formats: Annotated[
        str, typer.Option("--format", help="of each input: 'ND;FRACTAL_NZ'  [default: any]")
    ] = "",
    state: Annotated[str, typer.Option(help="dynamic or static  [default: any]")] = "",
    lengths: Annotated[
        str, typer.Option(help="keys of each request of attention, such as 4096,512")
    ] = "",
    output: Annotated[
        str, typer.Option(help="output shapes, such as '32,3200'  [default: any]")
    ] = "",
    file: Annotated[
        Path | None,
        typer.Option(
            help="file of cases: lines of text or JSON, a profile, or a CSV with columns of a "
            "tree, where `Kernel Type` or `kernel_type` is the kernel, `weight` what a miss counts"
        ),
    ] = None,
    extrapolate: Annotated[
        bool,
        typer.Option(
            "--extrapolate",
            help="answer up to 4 times beyond the measured sizes as well",
        ),
    ] = False,
    unambiguous: Annotated[
        bool,
        typer.Option(
            "--unambiguous", help="count several cases that match, with other durations, as a miss"
        ),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="list the measured cases behind each answer, and what would halve the widest "
            "interval",
        ),
    ] = False,
    reused: Annotated[
        bool,
        typer.Option(
            "--reused", help="answer what `plan --upgrade-from` reuses from the older stack"
        ),
    ] = False,
    misses: Annotated[
        Path | None, typer.Option(help="file to which the cases without a duration are added")
    ] = None,
    root: options.DatabaseRootOption = "opmeter-data",
    version: options.CommitOption = None,
    directory: options.DirectoryOption = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="print the answers as CSV")] = False,
    as_json: options.JsonOption = False,
) -> int:
    """Print the duration of a shape, measured or interpolated, with its interval.

    The exit code is 1 if a query has no duration.

    \b
    Examples:
      opmeter query "MatMulV2 32,5120;5120,3200 bf16"
      opmeter query MatMulV2 --shape "32,5120;5120,3200" --dtype bf16
      opmeter query MatMulV2 --file cases.csv --misses misses.jsonl --csv
    """
    if as_csv and (as_json or explain):
        raise BadInput("--csv excludes --json and --explain")
    given = {
        INPUT_SHAPES: shape,
        INPUT_DTYPES: dtype,
        INPUT_FORMATS: formats,
        OP_STATE: state,
        OUTPUT_SHAPES: output,
        KEY_LENGTHS: lengths,
    }
    rows = written_cases([case] if case else [], file, given)
    opened = opened_version(root, version, directory, reused=reused)
    with nullcontext() if misses is None else opened.recording_misses(misses):
        answers = list(_answers(opened, rows, file, extrapolate, unambiguous))
        explained = [
            _explained(opened, row, extrapolate, unambiguous)
            if explain or answer.reason is not None
            else None
            for row, answer in zip(rows, answers, strict=True)
        ]
        if file is None and (first := explained[0]) is not None and first.impossible:
            raise BadInput(f"no case of {rows[0].kernel} has these shapes: {first.impossible}")
    if explain:
        found = list(filter(None, explained))
        costs = [_cost_of_session(opened, one) for one in found]
        pairs = list(zip(found, costs, strict=True))
        if as_json:
            print_json([_explanation(*pair) for pair in pairs])
        else:
            for pair in pairs:
                say_lines(_explanation_lines(*pair))
    elif as_json:
        hints = ([*_hints(one)] if one is not None else [] for one in explained)
        print_json([{**plain_answer(a), "hints": of} for a, of in zip(answers, hints, strict=True)])
    elif as_csv:
        _print_csv(rows, answers)
    else:
        cases = [[row.kernel, row.shapes] for row in rows]
        texts = [list(map(_text, plain_answer(answer).values())) for answer in answers]
        table = [[*case, *text] for case, text in zip(cases, texts, strict=True)]
        print_table((_KERNEL, INPUT_SHAPES, *_COLUMNS), table, optional=("support",))
    if not (explain or as_json):
        say_lines(_hint_lines(rows, explained), err=True)
    return int(any(answer.reason is not None for answer in answers))


def list_command(
    kernel: Annotated[str, typer.Argument(help="kernel type  [default: all]")] = "",
    *,
    root: options.DatabaseRootOption = "opmeter-data",
    version: options.CommitOption = None,
    directory: options.DirectoryOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """List what a version has durations of: its kernel types and their dtypes.

    Of one kernel type, list the range of each size of its tensors, and the further settings.

    \b
    Examples:
      opmeter db list
      opmeter db list MatMulV2
    """
    groups = opened_version(root, version, directory).contents(kernel)
    if as_json:
        print_json([group._asdict() for group in groups])
        return
    if kernel:
        names = (INPUT_DTYPES, INPUT_SHAPES, OUTPUT_SHAPES, "cases", "settings")
        print_table(names, [_group_cells(group) for group in groups], optional=("settings",))
        return
    by_kernel: dict[str, list[CaseGroup]] = {}
    for group in groups:
        by_kernel.setdefault(group.kernel, []).append(group)
    table = []
    for name, own in sorted(by_kernel.items()):
        dtypes = ", ".join(dict.fromkeys(group.dtypes or "none" for group in own))
        table.append([name, str(sum(group.cases for group in own)), dtypes])
    print_table((_KERNEL, "cases", INPUT_DTYPES), table)


def _group_cells(group: CaseGroup) -> list[str]:
    texts = [f"{name} {' or '.join(map(repr, of))}" for name, of in group.settings.items()]
    settings = "; ".join([*texts, *group.lengths])
    return [group.dtypes, group.inputs, group.outputs, str(group.cases), settings]


def opened_version(
    root: str, version: str | None, directory: str | None, *, reused: bool = False
) -> Version:
    """Return the chosen version directory of a database, or its only one."""
    import opmeter
    from jobs.cli.look_up import chosen_directory

    is_number = version is not None and version.isdecimal()
    db = opmeter.open(
        root,
        number=int(version) if version is not None and is_number else None,
        channel=None if is_number else version,
    )
    return db.directory(chosen_directory(db.directories, directory), reused=reused)


def written_cases(
    texts: Sequence[str], file: Path | None, given: Mapping[str, str]
) -> list[WrittenCase]:
    """Return the cases of a command: those of its arguments, or those of its file, with the cells
    that options give. A kernel type alone is that of --shape, or of rows without one. Raises
    BadInput for none; of columns of a file that have no meaning, a warning is printed."""
    from opmeter.written_cases import EXAMPLE, WrittenCase, case_of_text, cases_of_file

    options = {name: text for name, text in given.items() if text}
    found = [case_of_text(text) for text in texts]
    are_whole = [bool(one.cells) for one in found]
    if file is not None:
        if any(are_whole) or len(found) > 1 or INPUT_SHAPES in options:
            raise BadInput("--file: expected a kernel type at most besides it, got a case")
        cases, unused = cases_of_file(file, found[0].kernel if found else "", options)
        if unused:
            say(f"warning: {file}: no case uses {', '.join(map(repr, unused))}", err=True)
        if not cases:
            raise BadInput("expected cases, got none", path=file)
        return cases
    if not found:
        raise BadInput(f"expected a case, such as '{EXAMPLE}', or --file; got none")
    for one in found:
        if twice := one.cells.keys() & options.keys():
            raise BadInput(f"{min(twice)}: given in the case and by an option")
        if not one.cells and INPUT_SHAPES not in options:
            what = "expected the shapes of its inputs after the kernel type"
            quoted = ", all of a case in quotes" if len(found) > 1 else ""
            raise BadInput(f"{one.kernel}: {what}{quoted}, as in '{EXAMPLE}'")
    return [WrittenCase(one.kernel, {**options, **one.cells}) for one in found]


def _answers(
    version: Version,
    rows: Sequence[WrittenCase],
    file: Path | None,
    extrapolate: bool,
    unambiguous: bool,
) -> Iterator[Answer]:
    for row in rows:
        try:
            yield version.query(
                row.kernel,
                **row.arguments,
                extrapolate=extrapolate,
                unambiguous=unambiguous,
                weight=_weight_of(row.cells),
            )
        except BadInput as error:
            if file is None:
                raise
            raise BadInput(str(error), path=file, line=row.line) from error


def _weight_of(cells: Mapping[str, str]) -> float:
    """Return what a miss of the row counts, such as launches."""
    from opmeter.cases import WEIGHT

    text = cells.get(WEIGHT, "1")
    try:
        weight = parse_number(text)
    except ValueError as error:
        raise BadInput(f"{WEIGHT}: {error}") from error
    if not 0 < weight <= MOST_WEIGHT:
        raise BadInput(f"{WEIGHT}: expected a number above 0, got {text[:40]!r}")
    return weight


def _explained(
    version: Version, row: WrittenCase, extrapolate: bool, unambiguous: bool
) -> Explanation:
    return version.explain(
        row.kernel, **row.arguments, extrapolate=extrapolate, unambiguous=unambiguous
    )


def _hints(found: Explanation) -> Iterator[str]:
    """Yield why a query has no duration, and what has one."""
    if found.impossible:
        yield f"no case has these shapes: {found.impossible}"
    yield from found.hints


def _hint_lines(
    rows: Sequence[WrittenCase], explained: Sequence[Explanation | None]
) -> Iterator[str]:
    """Yield the hints of the first misses."""
    missed = [(row, found) for row, found in zip(rows, explained, strict=True) if found is not None]
    for row, found in missed[:_MOST_HINTS]:
        what = f"{row.kernel} {row.shapes}: " if len(rows) > 1 else ""
        for hint in _hints(found):
            yield f"hint: {what}{hint}"
    if len(missed) > _MOST_HINTS:
        yield f"hint: {len(missed) - _MOST_HINTS:,} more queries have none; --json has all hints"


def plain_answer(answer: Answer) -> dict[str, object]:
    """Return an answer's values by column; None for the numbers of a miss."""
    values = (*answer[:5], ";".join(answer.warnings), answer.reason or "")
    return {
        name: None if value != value else str(value) if isinstance(value, str) else value
        for name, value in zip(_COLUMNS, values, strict=True)
    }


def _cost_of_session(version: Version, found: Explanation) -> SessionForecast | None:
    """Return what one more session of the widest case costs; None without a forecast."""
    from collector.model.demand import record_of_cells
    from jobs.planning.worth import session_forecast

    if found.widest is None:
        return None
    kernel, cells = version.case(found.widest.case)
    device = version.path.partition("/")[0]
    return session_forecast(record_of_cells(kernel, cells), found.widest.value_us, device)


def _explanation(found: Explanation, cost: SessionForecast | None) -> dict[str, object]:
    rows = [row._asdict() for row in found.rows]
    sessions = found.sessions_to_halve
    minutes = None if cost is None or sessions is None else sessions * cost.case_s / 60
    return {
        **plain_answer(found.answer),
        "hints": [*_hints(found)],
        "rows": rows,
        "widest": found.widest and found.widest.case,
        "sessions_to_halve": sessions,
        "sessions_to_halve_here": found.sessions_to_halve_here,
        "device_minutes_to_halve": minutes,
        "session_start_s": cost and cost.start_s,
    }


def _halving_line(found: Explanation, cost: SessionForecast | None) -> str:
    """Return what would halve the interval of the widest case."""
    more, here = found.sessions_to_halve, found.sessions_to_halve_here
    if more is None:
        return "to halve    the widest interval: more than 1,000 sessions"
    minutes = ""
    if cost is not None:
        alone = more * (cost.start_s + cost.case_s) / 60
        minutes = (
            f", {more * cost.case_s / 60:.2g} device-minutes; alone, with the starts of sessions, "
            f"{alone:.2g}"
        )
    same = "no number of sessions would" if here is None else f"it takes {here:,}"
    sessions = counted(more, "more session")
    return (
        f"to halve    the widest interval: {sessions} on other devices{minutes}; on the same "
        f"device {same}"
    )


def _explanation_lines(found: Explanation, cost: SessionForecast | None) -> Iterator[str]:
    values = plain_answer(found.answer)
    yield "answer      " + ", ".join(f"{name} {_text(one)}" for name, one in values.items() if one)
    for hint in _hints(found):
        yield f"hint        {hint}"
    for row in found.rows:
        shapes = ";".join("" if s is None else ",".join(map(str, s)) for s in row.inputs)
        interval = f"{row.value_us:.6g} us ({row.low_us:.6g} to {row.high_us:.6g})"
        mark = ", the widest" if row == found.widest else ""
        yield f"case        {row.case}  {shapes}  weight {row.weight:+.3f}  {interval}{mark}"
    if found.widest is not None:
        yield _halving_line(found, cost)


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


def _print_csv(rows: Sequence[WrittenCase], answers: Sequence[Answer]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow((_KERNEL, INPUT_SHAPES, INPUT_DTYPES, *_COLUMNS))
    for row, answer in zip(rows, answers, strict=True):
        case = (row.kernel, row.shapes, row.cells.get(INPUT_DTYPES, ""))
        writer.writerow((*case, *map(_text, plain_answer(answer).values())))
