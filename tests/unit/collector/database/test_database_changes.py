"""Changed cases between two version directories: real changes, and few others."""

from math import exp

import numpy as np
import pyarrow as pa
import pytest

from collector.database.changes import ShownCases, directory_changes
from collector.database.intervals import INTERVAL_SCHEMA
from collector.database.state import CASE_SCHEMA
from collector.model.vocabulary import INPUT_SHAPES

DEGREES = 12.0
SPREAD = 0.02  # standard error of a logarithm


def shown(
    path: str,
    means: dict[str, float],
    random: np.random.Generator | None,
    *,
    spread: float = SPREAD,
    warnings: str = "",
) -> ShownCases:
    """A version directory whose means deviate from the true ones, with the intervals that this many
    degrees of freedom give."""
    names = list(means)
    count = len(names)
    deviations = random.normal(0, spread, count) if random else np.zeros(count)
    errors = random.chisquare(DEGREES, count) / DEGREES if random else np.ones(count)
    halves = 2.179 * spread * np.sqrt(errors)  # Student's t for 12 degrees, 95 %
    mean_us = [means[name] * exp(one) for name, one in zip(names, deviations, strict=True)]
    numbers = {
        "case": names,
        "mean_us": mean_us,
        "stack_low_us": [us * exp(-half) for us, half in zip(mean_us, halves, strict=True)],
        "stack_high_us": [us * exp(half) for us, half in zip(mean_us, halves, strict=True)],
        "stack_degrees": [DEGREES] * count,
        "sessions": [2] * count,
        "warnings": [warnings] * count,
    }
    intervals = {
        field.name: numbers.get(field.name, [0 if pa.types.is_floating(field.type) else ""] * count)
        for field in INTERVAL_SCHEMA
    }
    cases = {field.name: [""] * count for field in CASE_SCHEMA}
    for name in ("head_commit", "plan"):
        cases[name] = [0] * count
    cases |= {"case": names, "kernel_type": ["Add"] * count, INPUT_SHAPES: names}
    return ShownCases(
        path, pa.table(cases, schema=CASE_SCHEMA), pa.table(intervals, schema=INTERVAL_SCHEMA)
    )


def test_real_changes_are_found_with_few_false_positives() -> None:
    """100 of 1,000 cases become 25 % slower; repeated ten times."""
    found = wrong = 0
    for seed in range(10):
        random = np.random.default_rng(seed)
        true = {f"case-{n}": 10.0 * (1 + n % 50) for n in range(1000)}
        slower = dict(true) | {f"case-{n}": 12.5 * (1 + n % 50) for n in range(100)}
        result = directory_changes(shown("a", true, random), shown("b", slower, random))
        assert result.compared == 1000
        names = [change.case_id for change in result.cases]
        right = sum(int(name.removeprefix("case-")) < 100 for name in names)
        found, wrong = found + right, wrong + len(names) - right
    assert found > 900, found  # of 1,000
    assert wrong <= 0.05 * (found + wrong), (found, wrong)


def test_equal_and_unmeasured_rows_are_not_changes() -> None:
    means = {f"case-{n}": 5.0 for n in range(50)}
    one = shown("a", means, None)
    alike = directory_changes(one, one)
    assert alike.same == alike.compared == alike.count("equal") > 0  # nothing was measured between
    assert alike.cases == () and alike.count("equal") == alike.compared == 50
    without = ShownCases("b", one.cases, one.intervals.slice(0, 0))
    assert {change.kind for change in directory_changes(one, without).cases} == {"removed"}
    assert directory_changes(without, without).cases == ()


def test_changes_are_sorted_by_their_effect_on_a_workload() -> None:
    before = {"often": 10.0, "rare": 10.0, "absent": 10.0, "gone": 4.0}
    after = {"often": 15.0, "rare": 100.0, "absent": 30.0, "new": 4.0}
    result = directory_changes(
        *(shown("a", before, None), shown("b", after, None), {"often": 1000, "rare": 2, "new": 1})
    )
    assert [change.case_id for change in result.cases] == ["often", "rare", "new"]
    first, second, added = result.cases
    assert (first.launches, round(first.difference_us)) == (1000, 5000)
    assert second.ratio is not None and round(second.ratio) == 10
    assert (added.kind, added.before_us, added.after_us) == ("added", None, 4.0)
    assert result.total_us == (10_020.0, 15_200.0) and result.is_of_workload
    assert result.compared == 2 and result.intervals is None


def test_wide_intervals_are_inconclusive_and_say_what_they_could_show() -> None:
    """Seven times as long, with intervals of a factor of twelve: neither changed nor equal."""
    means = {f"case-{n}": 10.0 for n in range(7)}
    slower = {name: 7.2 * us for name, us in means.items()}
    result = directory_changes(
        shown("a", means, None, spread=1.15), shown("b", slower, None, spread=1.15)
    )
    assert result.cases == () and result.count("inconclusive") == 7
    assert result.total_us == pytest.approx((70.0, 504.0)) and not result.is_of_workload
    assert result.difference_us == {
        "changed": 0.0,
        "inconclusive": pytest.approx(434.0),
        "equal": 0.0,
    }
    assert result.detectable_ratio is not None and result.detectable_ratio > 100
    assert result.sessions_for_10_pct is None or result.sessions_for_10_pct > 500
    for one in result.others:
        assert one.ratio == pytest.approx(7.2) and one.detectable_ratio == result.detectable_ratio


def test_narrow_intervals_are_equal_within_the_margin() -> None:
    one = shown("a", {"x": 10.0}, None, spread=0.01)
    other = shown("b", {"x": 10.1}, None, spread=0.01)
    equal = directory_changes(one, other)
    assert (equal.count("equal"), equal.same) == (1, 0)
    narrow = directory_changes(one, other, margin=0.02)
    assert narrow.count("equal") == 0 and narrow.sessions_for_10_pct == 1


@pytest.mark.parametrize("warnings", ["disturbed;spread", "drift", "canaries;envelope"])
def test_no_change_is_concluded_of_a_disturbed_session(warnings: str) -> None:
    """The same software next to another program: x618, with the narrow intervals of its repeats."""
    quiet = shown("a", {f"case-{n}": 1.0 for n in range(7)}, None)
    busy = {f"case-{n}": 618.0 if n < 5 else 1.0 for n in range(7)}
    for sides in (
        (quiet, shown("b", busy, None, warnings=warnings)),
        (shown("b", busy, None, warnings=warnings), quiet),
    ):
        result = directory_changes(*sides)
        assert result.count("changed") == 0 and result.disturbed == 7
        assert result.count("inconclusive") == 5 and result.count("equal") == 2
        texts = {(one.warnings_before, one.warnings_after) for one in result.others}
        assert texts in ({("", warnings)}, {(warnings, "")})
    warned = directory_changes(quiet, shown("b", busy, None, warnings="spread"))
    assert warned.count("changed") == 5 and warned.cases[0].warnings_after == "spread"
