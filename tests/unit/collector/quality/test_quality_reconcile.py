"""Attribution by order, on rows: a fault affects its own case and no other duration."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.model.case import case_from_cells
from collector.model.measurement import Companion
from collector.model.vocabulary import ACCELERATOR_CORE, INPUT_SHAPES, OP_STATE
from collector.quality.identity import Expectation, Substitution
from collector.quality.reconcile import (
    FLUSH,
    SENTINEL_TYPE,
    TICK,
    Mark,
    Sentinel,
    attribute,
    find_windows,
    sentinel_of,
)
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast


@dataclass(frozen=True)
class Row:
    op_type: str
    duration_us: float
    cells: Mapping[str, str]
    owner: int | None = None  # the ordinal of the case it was recorded for


def sentinel_row(mark: Mark, ordinal: int) -> Row:
    shape = ",".join(map(str, Sentinel(mark, ordinal).shape))
    return Row(SENTINEL_TYPE, 0.5, {INPUT_SHAPES: f'"{shape}"'}, ordinal)


def launch_row(kernel_type: str, duration_us: float, owner: int | None = None) -> Row:
    return Row(kernel_type, duration_us, {INPUT_SHAPES: '"4,4"'}, owner)


@st.composite
def recordings(draw: st.DrawFn) -> tuple[list[Row], list[Expectation]]:
    """Draw an intact recording of several cases, with strays between them."""
    rows: list[Row] = []
    expectations = []
    number = 0
    for ordinal in range(draw(st.integers(1, 5))):
        kernel = draw(st.sampled_from(["Add", "Mul", "MatMulV3"]))
        repeats, others = draw(st.integers(1, 5)), draw(st.integers(0, 3))
        rows.append(launch_row("aten::normal_", 100.0 + number))
        rows.append(sentinel_row(Mark.OPEN, ordinal))
        for _ in range(repeats + others):
            number += 1
            rows.append(launch_row(kernel, float(number), ordinal))
        rows.append(sentinel_row(Mark.CLOSE, ordinal))
        expectations.append(Expectation(ordinal, kernel, repeats + others, repeats))
    return rows, expectations


@given(recordings())
@settings(max_examples=50)
def test_intact_recording_gives_every_case_its_last_launches(recording):
    rows, expectations = recording
    found = attribute(rows, expectations)
    for expected in expectations:
        own = [r for r in rows if r.owner == expected.ordinal and r.op_type != SENTINEL_TYPE]
        case = found[expected.ordinal]
        assert case.lost == ""
        assert list(case.repeats) == own[-expected.repeats :]
        assert case.observed == expected.launches
        assert case.companions == ()


@pytest.mark.thorough
@given(recordings(), st.data())
@settings(max_examples=200)
def test_missing_or_duplicate_row_loses_exactly_its_case(recording, data):
    rows, expectations = recording
    place = data.draw(st.integers(0, len(rows) - 1))
    damaged = data.draw(
        st.sampled_from(
            [rows[:place] + rows[place + 1 :], rows[: place + 1] + rows[place:]],
        )
    )
    before, after = attribute(rows, expectations), attribute(damaged, expectations)
    for expected in expectations:
        if expected.ordinal == rows[place].owner:
            assert after[expected.ordinal].lost
            assert after[expected.ordinal].repeats == ()
        else:
            assert after[expected.ordinal] == before[expected.ordinal]


@pytest.mark.thorough
@given(recordings(), st.data())
@settings(max_examples=100)
def test_foreign_kernel_is_a_companion_and_changes_no_duration(recording, data):
    rows, expectations = recording
    place = data.draw(st.integers(0, len(rows)))
    damaged = [*rows[:place], launch_row("Memcpy", 7.0), *rows[place:]]
    before, after = attribute(rows, expectations), attribute(damaged, expectations)
    inside = {i: window for i, window in _places(rows).items() if window[0] < place <= window[1]}
    for expected in expectations:
        ordinal = expected.ordinal
        assert after[ordinal].repeats == before[ordinal].repeats
        assert after[ordinal].lost == ""
        correct = (Companion("Memcpy", 1, 7.0),) if ordinal in inside else ()
        assert after[ordinal].companions == correct


@pytest.mark.thorough
@given(recordings(), st.data())
@settings(max_examples=100)
def test_duplicate_sentinel_costs_only_its_own_case(recording, data):
    rows, expectations = recording
    sentinels = [row for row in rows if row.op_type == SENTINEL_TYPE]
    again = data.draw(st.sampled_from(sentinels))
    place = data.draw(st.integers(0, len(rows)))
    before = attribute(rows, expectations)
    after = attribute([*rows[:place], again, *rows[place:]], expectations)
    for expected in expectations:
        if expected.ordinal == again.owner:
            assert names(after[expected.ordinal].lost, "sentinel", 2)
        else:
            assert after[expected.ordinal] == before[expected.ordinal]


def test_reasons_contain_the_numbers():
    rows = [sentinel_row(Mark.OPEN, 0), launch_row("Add", 1.0), sentinel_row(Mark.CLOSE, 0)]
    three, one = [Expectation(0, "Add", 3, 2)], [Expectation(0, "Add", 1, 1)]
    assert names(attribute(rows, three)[0].lost, "3 launches", 1)
    assert names(attribute([], three)[0].lost, "sentinels")
    assert names(attribute(rows[1:], one)[0].lost, "opening sentinel", 0)
    assert names(attribute(rows[::-1], one)[0].lost, "sentinels", "order")


def test_overlapping_windows_are_both_lost():
    marks = [(0, Mark.OPEN, 0), (5, Mark.OPEN, 1), (9, Mark.CLOSE, 0), (12, Mark.CLOSE, 1)]
    windows = find_windows((place, Sentinel(mark, i)) for place, mark, i in marks)
    assert windows.good == ()
    assert set(windows.broken) == {0, 1}


@given(st.sampled_from([Mark.OPEN, Mark.CLOSE]), st.integers(0, 100_000))
@settings(max_examples=100)
def test_sentinel_is_decoded_from_its_shape(mark, ordinal):
    assert sentinel_of(Sentinel(mark, ordinal).shape) == Sentinel(mark, ordinal)


@pytest.mark.parametrize("shape", [(), (3, 7), (3, 7, 9, 1, 1), (3, 7, 1, 0, 1), (3, 7, 1, 1, 33)])
def test_other_shapes_are_not_sentinels(shape):
    assert sentinel_of(shape) is None


def test_ticks_and_flushes_are_distinguished():
    assert sentinel_of(TICK.shape) == TICK != FLUSH == sentinel_of(FLUSH.shape)


def _places(rows: list[Row]) -> dict[int | None, tuple[int, int]]:
    """Return the positions of each case's two sentinels."""
    places: dict[int | None, list[int]] = {}
    for i, row in enumerate(rows):
        if row.op_type == SENTINEL_TYPE:
            places.setdefault(row.owner, []).append(i)
    return {owner: (first, last) for owner, (first, last) in places.items()}


def _case(kernel: str, state: str = "") -> list[Row]:
    """Return a window of four launches of one type, as a profiler of an NPU writes it."""
    cells = {INPUT_SHAPES: '"4,4"', OP_STATE: state}
    launches = [Row(kernel, float(i), cells) for i in range(1, 5)]
    return [sentinel_row(Mark.OPEN, 0), *launches, sentinel_row(Mark.CLOSE, 0)]


def _attributed(rows: list[Row], **expected):
    values = {"family": frozenset({"Add", "AddAiCore"})} | expected
    return attribute(rows, [Expectation(0, "Add", 4, 2, **values)])[0]


def without_reason(found) -> Substitution:
    """Return the substitution without its reason."""
    assert found.substitution.reason
    return replace(found.substitution, reason="")


@pytest.mark.parametrize("name", ["Neg", "SomeOtherMark"])
def test_sentinel_is_recognised_by_its_shape_for_any_type(name):
    rows = [replace(r, op_type=name) if r.op_type == SENTINEL_TYPE else r for r in _case("Add")]
    found = _attributed(rows)
    assert [row.duration_us for row in found.repeats] == [3.0, 4.0]
    assert found.companions == () and found.substitution is None


def test_launches_of_a_twin_are_recorded_under_it():
    found = _attributed(_case("AddAiCore"))
    assert found.lost == "" and len(found.repeats) == 2
    assert without_reason(found) == Substitution("AddAiCore", True, "")
    assert names(found.substitution.reason, "AddAiCore", "Add")


def test_launches_of_an_unrelated_kernel_are_recorded_under_no_case():
    found = _attributed(_case("Muls"))
    assert found.lost == "" and not found.substitution.is_filed
    assert names(found.substitution.reason, "Muls", "Add")
    filed = _attributed(_case("AddAiCore")).substitution.reason.replace("AddAiCore", "Muls")
    assert len(found.substitution.reason) > len(filed)  # it also has that it is not recorded


def test_two_unrelated_kernels_are_both_named():
    rows = [row for pair in zip(_case("Muls"), _case("Cast"), strict=True) for row in pair]
    found = _attributed([rows[0], *rows[2:-2], rows[-1]])
    assert names(found.substitution.reason, "Cast", "Muls", "Add")
    assert not found.substitution.is_filed


def test_kernel_of_the_family_precedes_a_companion_with_equal_count():
    rows = [row for pair in zip(_case("AddAiCore"), _case("Cast"), strict=True) for row in pair]
    found = _attributed([rows[0], *rows[2:-2], rows[-1]])
    assert found.substitution.kernel_type == "AddAiCore" and found.substitution.is_filed
    assert [c.kernel_type for c in found.companions] == ["Cast"]


def test_launches_of_two_kernels_of_a_family_are_lost():
    rows = _case("Add")
    rows[2] = replace(rows[2], op_type="AddAiCore")
    assert names(_attributed(rows).lost, "4 launches", 3)


@pytest.mark.parametrize(
    ("requested", "reported", "substituted"),
    [
        ("", "static", False),
        ("dynamic", "dynamic", False),
        ("dynamic", "N/A", False),
        ("static", "dynamic", True),
    ],
)
def test_another_op_state_than_that_of_the_case_is_a_substitution(requested, reported, substituted):
    found = _attributed(_case("Add", reported), op_state=requested)
    assert (found.substitution is not None) == substituted
    assert found.op_state == ("" if reported == "N/A" else reported)
    if substituted:
        assert without_reason(found) == Substitution("Add", True, "")
        assert names(found.substitution.reason, "OP State", reported, requested)


@pytest.mark.parametrize(
    ("requested", "actual", "is_filed"),
    [
        ("", ["AI_CPU"] * 4, None),
        ("AI_CORE", ["AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV", "AI_CORE"], None),
        ("AI_CORE", ["N/A"] * 4, None),
        ("AI_CPU", ["AI_CPU", "AICPU", "AI_CPU", ""], None),
        ("AI_CORE", ["AI_CPU"] * 4, True),
        ("AI_CPU", ["AI_VECTOR_CORE"] * 4, True),
        ("AI_CORE", ["AI_CORE", "AI_CORE", "AI_CORE", "AI_CPU"], False),
    ],
)
def test_ai_cpu_kernel_is_not_a_measurement_of_a_core(requested, actual, is_filed):
    first, *launches, last = _case("Add")
    cores = [
        replace(row, cells={**row.cells, ACCELERATOR_CORE: core})
        for row, core in zip(launches, actual, strict=True)
    ]
    expected = Expectation(0, "Add", 4, 2, core=requested)
    found = attribute([first, *cores, last], [expected])[0]
    assert (found.substitution is None) == (is_filed is None)
    if is_filed is not None:
        other = "AI_CPU" if requested == "AI_CORE" else "AI_CORE"
        assert without_reason(found) == Substitution("Add", is_filed, "")
        assert names(found.substitution.reason, "Accelerator Core", other, requested)


@pytest.mark.parametrize(
    ("column", "actual", "kinds"),
    [
        (OP_STATE, ("static", "dynamic"), ("static", "dynamic")),
        (ACCELERATOR_CORE, ("AI_CPU", "MIX"), ("AI_CPU", "AI_CORE")),
    ],
)
def test_launches_of_two_kinds_have_no_mean(column, actual, kinds):
    first, *launches, last = _case("Add")
    rows = [
        replace(row, cells={**row.cells, column: actual[place % 2]})
        for place, row in enumerate(launches)
    ]
    found = _attributed([first, *rows, last]).substitution
    assert names(found.reason, column, *kinds) and not found.is_filed


def test_index_of_a_compiled_variant_is_not_part_of_its_type():
    rows = _case("muls_add_kernel_1")
    found = attribute(rows, [Expectation(0, "muls_add_kernel", 4, 2)])[0]
    assert (found.lost, found.substitution) == ("", None)


def test_launches_between_a_flush_and_the_next_tick_are_ignored():
    first, *launches, last = _case("Add")
    flush, tick = sentinel_row(Mark.FLUSH, 0), sentinel_row(Mark.TICK, 0)
    cold = [row for launch in launches for row in (flush, launch_row("Add", 99.0), tick, launch)]
    found = _attributed([first, *cold, last])
    assert [row.duration_us for row in found.repeats] == [3.0, 4.0]
    assert found.companions == ()
    without_a_tick = [row for i, row in enumerate(cold) if i != 2]
    assert _attributed([first, *without_a_tick, last]).lost


SORT = {
    INPUT_SHAPES: '"16,64"',
    "Input Data Types": "DT_BF16",
    "Input Formats": "ND",
    "Output Shapes": '"16,64"',
    "Output Data Types": "DT_BF16",
    "Output Formats": "ND",
}
FLOAT = {"Input Data Types": "FLOAT", "Output Data Types": "FLOAT"}
UNRECORDED = dict.fromkeys(SORT, "N/A")


def _of_sort(*launches: tuple[str, dict[str, str]], **expected):
    """Attribute a case that requests SORT, of which four launches were issued."""
    rows = [Row(kernel, float(i), cells) for i, (kernel, cells) in enumerate(launches, 1)]
    window = [sentinel_row(Mark.OPEN, 0), *rows, sentinel_row(Mark.CLOSE, 0)]
    values = {"family": frozenset({"Sort"}), "case": case_from_cells("Sort", SORT)} | expected
    return attribute(window, [Expectation(0, "Sort", 4, 2, **values)])[0]


def test_tensors_of_every_counted_launch_prove_the_case():
    found = _of_sort(*[("Sort", SORT)] * 4)
    assert found.substitution is None and found.identity.is_proved


def test_unrecorded_tensors_are_unverified():
    found = _of_sort(*[("Sort", SORT)] * 3, ("Sort", UNRECORDED))
    assert found.substitution is None and not found.identity.is_proved
    assert _of_sort(*[("Sort", UNRECORDED)] * 4, case=None).identity is None


def test_kernel_with_other_tensors_is_recorded_under_them():
    found = _of_sort(*[("Cast", SORT), ("Sort", SORT | FLOAT)] * 4)
    assert found.substitution.kernel_type == "Sort" and found.substitution.is_filed
    assert dict(found.substitution.cells) == SORT | FLOAT
    assert names(found.substitution.reason, "input 1", "16,64 FLOAT ND")
    assert [(c.kernel_type, c.count) for c in found.companions] == [("Cast", 4)]


def test_launches_with_two_kinds_of_tensors_are_recorded_under_neither():
    found = _of_sort(*[("Sort", SORT)] * 3, ("Sort", SORT | FLOAT))
    assert without_reason(found) == Substitution("Sort", False, "")
    assert names(found.substitution.reason, "launches")


def test_another_operator_is_recorded_if_all_its_tensors_are_known():
    found = _of_sort(*[("Mul", SORT)] * 4)
    assert found.substitution.is_filed and dict(found.substitution.cells) == SORT
    for cells in (UNRECORDED, SORT | {"Output Shapes": "N/A"}):
        assert not _of_sort(*[("Mul", cells)] * 4).substitution.is_filed
    assert not _of_sort(*[("0", SORT)] * 4).substitution.is_filed


def test_other_tensors_without_a_dtype_are_not_a_case():
    halved = SORT | {INPUT_SHAPES: '"8,64"', "Input Data Types": "N/A"}
    found = _of_sort(*[("Sort", halved)] * 4)
    assert not found.substitution.is_filed and found.substitution.cells == ()
    assert "8,64" in found.substitution.reason


@pytest.mark.parametrize("times", [2, 3])
def test_multiple_of_the_expected_launches_is_not_a_loss(times):
    found = _of_sort(*[("Sort", SORT | {INPUT_SHAPES: '"8,64"'})] * 4 * times)
    assert not found.lost and not found.substitution.is_filed
    assert names(found.substitution.reason, f"{times} launches", "Sort")
    assert _of_sort(*[("Sort", SORT)] * (4 * times + 1)).lost


def test_launches_with_the_tensors_of_the_case_are_selected_among_more():
    before = ("Sort", SORT | {INPUT_SHAPES: '"8,64"'})
    found = _of_sort(*[before, ("Sort", SORT)] * 4)
    assert found.substitution is None and found.identity.is_proved
    assert [row.duration_us for row in found.repeats] == [6.0, 8.0]
    assert [(c.kernel_type, c.count) for c in found.companions] == [("Sort", 4)]


KINDS = ["Add", "Mul", "MatMulV3"]


@st.composite
def contexts(draw: st.DrawFn) -> tuple[list[Row], list[Expectation]]:
    """Draw an intact recording of cases after launches that may be of their own types too."""
    rows: list[Row] = []
    expectations = []
    for ordinal in range(draw(st.integers(1, 3))):
        kernel, before = draw(st.sampled_from(KINDS)), draw(st.lists(st.sampled_from(KINDS)))
        repeats, others = draw(st.integers(1, 4)), draw(st.integers(0, 2))
        before = before or [kernel]
        rows.append(sentinel_row(Mark.OPEN, ordinal))
        for number in range(repeats + others):
            rows.append(replace(sentinel_row(Mark.CONTEXT, 0), owner=ordinal))
            rows += [launch_row(kind, 900.0, ordinal) for kind in before]
            rows.append(launch_row(kernel, 1.0 + number, ordinal))
        rows.append(sentinel_row(Mark.CLOSE, ordinal))
        types = tuple(frozenset({kind}) for kind in before)
        count = repeats + others
        expectations.append(Expectation(ordinal, kernel, count, repeats, before=types))
    return rows, expectations


@pytest.mark.thorough
@given(contexts(), st.data())
@settings(max_examples=200)
def test_launches_before_a_case_are_neither_counted_nor_companions(recording, data):
    rows, expectations = recording
    whole = attribute(rows, expectations)
    place = data.draw(st.integers(0, len(rows) - 1))
    damage = data.draw(st.sampled_from([(), (rows[place], rows[place])]))
    damaged = attribute([*rows[:place], *damage, *rows[place + 1 :]], expectations)
    for expected in expectations:
        found, after = whole[expected.ordinal], damaged[expected.ordinal]
        first = expected.launches - expected.repeats
        numbers = [1.0 + n for n in range(first, expected.launches)]
        assert (found.lost, found.companions) == ("", ())
        assert [row.duration_us for row in found.repeats] == numbers
        if expected.ordinal != rows[place].owner:
            assert after == found
        elif damage:  # a duplicate launch may be a companion of one before the case
            assert after.lost or [row.duration_us for row in after.repeats] == numbers
        else:
            assert after.lost


def test_context_launch_may_be_a_twin_and_have_companions():
    mark = sentinel_row(Mark.CONTEXT, 0)
    stretch = [launch_row(kind, 9.0) for kind in ("Cast", "MatMulV3", "Cast", "Add")]
    rows = [sentinel_row(Mark.OPEN, 0)]
    for number in (1.0, 2.0):
        rows += [mark, *stretch, launch_row("TransData", 5.0), launch_row("Add", number)]
    rows.append(sentinel_row(Mark.CLOSE, 0))
    before = (frozenset({"MatMulV2", "MatMulV3"}), frozenset({"Add"}))
    expected = Expectation(0, "Add", 2, 1, before=before)
    found = attribute(rows, [expected])[0]
    assert (found.lost, [row.duration_us for row in found.repeats]) == ("", [2.0])
    assert found.companions == (Companion("TransData", 2, 5.0),)
    other = replace(expected, before=(frozenset({"Sub"}), *before))
    assert names(attribute(rows, [other])[0].lost, "Sub")
