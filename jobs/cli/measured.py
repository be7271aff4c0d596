"""The results of `opmeter measure`, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import exp, fsum, log
from typing import TYPE_CHECKING, Any

from collector.codec.text import counted, whole_in_one_line
from collector.model.vocabulary import INPUT_DTYPES, INPUT_SHAPES
from collector.quality.gates import DISTURBED
from jobs.cli.terminal import print_table, say
from jobs.executor.alternating import FEWEST_PAIRS

if TYPE_CHECKING:
    from collector.database.changes import CaseChange
    from collector.model.measurement import Measurement
    from collector.model.record import CaseRecord
    from jobs.cli.diff import ChosenSide
    from jobs.executor.alternating import Session, Side
    from opmeter.answers import Answer

_KERNEL = "kernel_type"
_NAMES = (_KERNEL, INPUT_SHAPES)
_MOST_RATIO = 1000.0
_Times = list[list[float]]


@dataclass(frozen=True)
class Measured:
    """The sessions of all sides, and what the database answers after them. `margin` is that of
    equality, `before` the version to compare with."""

    sides: Sequence[Side]
    done: Sequence[Sequence[Session]]
    margin: float
    before: ChosenSide | None

    @property
    def lacking(self) -> int:
        """Return how many cases have no duration on a side."""
        return sum(
            not any(_is_good(session.of(one.case_id)) for session in own)
            for side, own in zip(self.sides, self.done, strict=True)
            for one in side.records
        )

    def print(self) -> None:
        if len(self.sides) > 1:
            self._print_pairs()
        else:
            self._print_answers()
        places = (f"stored in {one.store.url}: {one.stack.version_path}" for one in self.sides)
        for place in dict.fromkeys(places):
            say(place, err=True)

    def as_json(self) -> dict[str, object]:
        sides = [
            {
                "name": side.name,
                "backend": side.backend,
                "stack": side.stack.as_json(),
                "environment": side.environment and side.environment.name,
                "store": side.store.url,
                "directory": side.stack.version_path,
                "campaign": side.campaign.name,
                "sessions": len(own),
            }
            for side, own in zip(self.sides, self.done, strict=True)
        ]
        if len(self.sides) > 1:
            return {"sides": sides, "margin": self.margin, "pairs": self.pairs}
        changes = [asdict(one) for one in self.changes()] if self.before is not None else None
        return {"sides": sides, "cases": self.answers, "compared": changes}

    # One side.

    @cached_property
    def answers(self) -> list[dict[str, Any]]:
        """Return the database's answer to each case, or why there is none."""
        from jobs.cli.query import plain_answer
        from opmeter.answers import MISSES, Reason
        from opmeter.database import database_now

        (side,), (sessions,) = self.sides, self.done
        database = database_now(side.store)
        is_there = side.stack.version_path in database.directories
        version = database.directory(side.stack.version_path) if is_there else None
        found: list[dict[str, Any]] = []
        for record in side.records:
            results = [session.of(record.case_id) for session in sessions]
            is_good = version is not None and any(map(_is_good, results))
            answer = MISSES[Reason.NO_KERNEL]
            if is_good and version is not None:
                answer = version.query_record(record)
            failed = next((one for one in results if one is not None and not one.is_good), None)
            why = f"{failed.outcome}: {whole_in_one_line(failed.reason)}" if failed else "no result"
            reason = why if not is_good else _left_out(results, answer)
            found.append({**_named(record), **plain_answer(answer), "reason": reason})
        return found

    def _print_answers(self) -> None:
        shown = ("value_us", "low_us", "high_us", "sessions", "warnings", "reason")
        rows = [{**one, "sessions": one["support"]} for one in self.answers]
        columns = [name for name in shown if any(row[name] not in ("", None) for row in rows)]
        table = [[str(row[n]) for n in _NAMES] + [_text(row[n]) for n in columns] for row in rows]
        print_table((*_NAMES, *columns), table, optional=("warnings",))
        if self.before is not None:
            for one in self.changes():
                say(_change_line(one))
        measured = len(self.done[0])
        if any(one["value_us"] is not None and one["support"] < measured for one in self.answers):
            what = "sessions with warnings do not count where others have none"
            say(f"{what}: run the same command again for more", err=True)

    def changes(self) -> Sequence[CaseChange]:
        """Return how the cases differ from the version of --compare."""
        from collector.database.changes import directory_changes
        from jobs.cli.diff import chosen_side

        assert self.before is not None
        (side,), (sessions,) = self.sides, self.done
        path = side.stack.version_path
        now = chosen_side(side.store.url, path)
        results = [session.of(one.case_id) for session in sessions for one in side.records]
        cases = {one.case_id: 1 for one in results if one is not None and one.is_good}
        earlier = self.before.shown(self.before.directory or path)
        found = directory_changes(earlier, now.shown(path), cases, margin=self.margin)
        return [one for one in (*found.cases, *found.others) if one.case_id in cases]

    # Two sides.

    @cached_property
    def pairs(self) -> list[dict[str, object]]:
        """Return the ratio of each case of the second side to that of the first, largest first."""
        from collector.quality.changes import paired_ratios

        rows: list[dict[str, object]] = []
        differences: list[list[float]] = []
        for records in zip(*(side.records for side in self.sides), strict=True):
            both = [
                [session.of(record.case_id) for session in own]
                for record, own in zip(records, self.done, strict=True)
            ]
            times, about = _times_of_pairs(zip(*both, strict=True))
            failed = next((one for own in both for one in own if one and not one.is_good), None)
            named = _named(records[0])
            if records[1].case_id != records[0].case_id:
                named |= {f"other {name}": text for name, text in _named(records[1]).items()}
            row = {**named, "before_us": None, "after_us": None, "finding": None, "reason": ""}
            if len(times) > 1:
                logs = [[log(us) for us in own] for own in zip(*times, strict=True)]
                row["before_us"], row["after_us"] = (exp(fsum(x) / len(x)) for x in logs)
                differences.append([after - before for before, after in zip(*logs, strict=True)])
            else:
                why = "fewer than two pairs of sessions"
                row["reason"] = f"{failed.outcome}: {failed.reason}" if failed else why
            rows.append({**row, **about})
        ratios = iter(paired_ratios(differences, margin=self.margin))
        return [row | asdict(next(ratios)) if row["before_us"] else row for row in rows]

    def _print_pairs(self) -> None:
        names = [f"{side.name} us" for side in self.sides]
        columns = (*_NAMES, *names, "ratio", "95 % interval", "finding")
        table = []
        for row in self.pairs:
            cells = [str(row[name]) for name in _NAMES]
            if row["finding"] is None:
                table.append([*cells, "", "", "", "", str(row["reason"])])
                continue
            interval = _interval_text(row["low"], row["high"])
            times = [_text(row[name]) for name in ("before_us", "after_us")]
            table.append([*cells, *times, _text(row["ratio"]), interval, str(row["finding"])])
        print_table(columns, table)
        for line in _pair_lines(self.pairs, self.margin):
            say(line, err=True)


def _times_of_pairs(
    pairs: Iterable[tuple[Measurement | None, ...]],
) -> tuple[_Times, dict[str, int]]:
    """Return the durations of the pairs of sessions that count, and how many were disturbed.

    As in the database, a disturbed session does not count where others do: here where there are as
    many undisturbed pairs as a comparison requires."""
    good = [pair for pair in pairs if all(map(_is_good, pair))]
    clean = [pair for pair in good if not any(one and one.is_disturbed for one in pair)]
    chosen = clean if len(clean) >= FEWEST_PAIRS else good
    times = [[one.timing.mean_us for one in pair if one and one.timing] for pair in chosen]
    disturbed, left_out = len(chosen) - len(clean), len(good) - len(chosen)
    return times, {"disturbed_pairs": disturbed, "left_out_pairs": left_out}


def _left_out(results: Iterable[Measurement | None], answer: Answer) -> str:
    """Return what the sessions of now took where the answer is of earlier, undisturbed ones."""
    own = [one for one in results if _is_good(one)]
    times = [one.timing.mean_us for one in own if one and one.timing]
    if DISTURBED in answer.warnings or not all(one and one.is_disturbed for one in own):
        return ""
    return f"of earlier sessions: those of now were disturbed, {fsum(times) / len(times):.4g} us"


def _is_good(result: Measurement | None) -> bool:
    return result is not None and result.is_good


def _named(record: CaseRecord) -> dict[str, object]:
    cells = record.cells
    return {
        _KERNEL: record.kernel_type,
        INPUT_SHAPES: cells[INPUT_SHAPES].strip('"'),
        INPUT_DTYPES: cells[INPUT_DTYPES],
        "case_id": record.case_id,
    }


def _text(value: object) -> str:
    """Return four digits of a number, more before its point."""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return "" if value is None else str(value)


def _interval_text(low: object, high: object) -> str:
    """Return the interval of a ratio; one that is wider than a factor of 1,000 has no more
    information."""
    below = isinstance(low, float) and low < 1 / _MOST_RATIO
    above = isinstance(high, float) and high > _MOST_RATIO
    return f"{'below 0.001' if below else _text(low)} to {'over 1000' if above else _text(high)}"


def _change_line(one: CaseChange) -> str:
    case = f"{one.kernel_type} {one.shapes.strip(chr(34))}"
    if one.ratio is None or one.before_us is None or one.after_us is None:
        return f"{case}: no duration to compare with"
    times = f"{one.before_us:.4g} -> {one.after_us:.4g} us"
    if one.is_same:
        return f"{case}: the same sessions on both sides, {one.after_us:.4g} us: run it again"
    interval = _interval_text(one.ratio_low, one.ratio_high)
    return f"{case}: {one.kind}, {times}, x{one.ratio:.4g} ({interval})"


def _pair_lines(rows: Sequence[Mapping[str, object]], margin: float) -> Iterator[str]:
    """Yield what the findings mean, and what would decide the inconclusive ones."""
    compared = [row for row in rows if row["finding"] is not None]
    if not compared:
        return
    numbers = {int(str(row["pairs"])) for row in compared}
    pairs = " to ".join(dict.fromkeys((f"{min(numbers)}", f"{max(numbers)}")))
    yield (
        f"of {pairs} pairs of sessions that took turns; equal: within {100 * margin:g} % either way"
    )
    for name, effect in (
        ("disturbed_pairs", "count, and widen the intervals: close other programs"),
        ("left_out_pairs", "are left out"),
    ):
        if most := max(int(str(row[name])) for row in rows):
            yield f"other programs disturbed up to {counted(most, 'pair')}, which {effect}"
    open_rows = [row for row in compared if row["finding"] == "inconclusive"]
    if open_rows:
        least = max(float(str(row["detectable"])) for row in open_rows)
        shown = f"from x{least:.3g} on" if least < _MOST_RATIO else "above a factor of 1,000 alone"
        counts = [int(str(row["pairs_for_10_pct"])) for row in open_rows]
        more = (
            f"--sessions {max(counts)} would show one of x1.1"
            if all(counts)
            else ("no number of sessions up to 1,000 would show one of x1.1")
        )
        yield f"inconclusive: so many pairs show a change {shown}; {more}"
