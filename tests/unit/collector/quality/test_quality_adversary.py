"""A wrong duration is never called proved: an adversary between a call and its record.

Several cases of one kernel are recorded, and then anything goes wrong in between: kernels get other
tensors, blanks and layouts, rows are lost, duplicated, exchanged between cases, and their cells are
spelled otherwise or hidden. Each row knows what it ran, which is hidden from attribution. A
duration must be recorded under what ran, or be unverified, or be absent.
"""

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from collector.model.case import case_from_cells
from collector.model.vocabulary import INPUT_CELLS, INPUT_SHAPES, OUTPUT_CELLS
from collector.quality.identity import Expectation
from collector.quality.reconcile import SENTINEL_TYPE, Mark, Sentinel, attribute

_BLANK = ("", "DT_UNDEFINED", "NULL")
_SHAPES = ["4,8", "8,4", "2,1,16,16", "16", "1", "0,8"]
_DTYPES = ["FLOAT", "DT_BF16", "INT8", "INT64", "UINT64"]
_FORMATS = ["ND", "FRACTAL_NZ"]
_SLOT = st.tuples(*map(st.sampled_from, (_SHAPES, _DTYPES, _FORMATS)))
_SIDE = st.lists(st.one_of(_SLOT, st.just(_BLANK)), min_size=1, max_size=4).filter(
    lambda side: side[0] != _BLANK
)
_RUN = st.tuples(st.sampled_from(["Sort", "Mul"]), _SIDE, st.lists(_SLOT, min_size=1, max_size=2))
_SPELLINGS = {"DT_BF16": "BF16", "FLOAT": "DT_FLOAT", "ND": "NCHW"}


@dataclass(frozen=True)
class Row:
    """A launch: what it ran, and its cells, which may contain less."""

    op_type: str
    cells: dict[str, str]
    ran: object = None
    duration_us: float = 1.0


def _cells(inputs, outputs):
    sides = ((INPUT_CELLS, inputs), (OUTPUT_CELLS, outputs))
    return {
        name: ";".join(slot[at] for slot in side)
        for names, side in sides
        for at, name in enumerate(names)
    }


def _launch(run):
    kernel, inputs, outputs = run
    return Row(kernel, _cells(inputs, outputs), run)


def _mark(mark, ordinal):
    shape = ",".join(map(str, Sentinel(mark, ordinal).shape))
    return Row(SENTINEL_TYPE, {INPUT_SHAPES: shape})


def _respelled(row):
    cells = {
        name: ";".join(_SPELLINGS.get(word, word) for word in text.split(";"))
        for name, text in row.cells.items()
    }
    return replace(row, cells=cells)


def _without_trailing_blanks(row):
    kernel, inputs, outputs = row.ran
    while inputs[-1] == _BLANK:
        inputs = inputs[:-1]
    return replace(row, cells=_cells(inputs, outputs))


def _without_blanks(row):
    """Return it as in a graph's row, which is a separate case: omitted slots are unknown."""
    kernel, inputs, outputs = row.ran
    return _launch((kernel, [slot for slot in inputs if slot != _BLANK], outputs))


@st.composite
def _damaged(draw):
    """Cases, the expectation of each, and their remaining rows."""
    requested = draw(st.lists(_RUN, min_size=1, max_size=3))
    windows, expectations = [], []
    for ordinal, run in enumerate(requested):
        launches = draw(st.integers(2, 4))
        ran = draw(st.one_of(st.just(run), st.sampled_from(requested), _near(run)))
        windows.append([_launch(ran) for _ in range(launches)])
        case = case_from_cells(run[0], _cells(*run[1:]))
        family = frozenset({"Sort", "Mul"}) if draw(st.booleans()) else frozenset()
        expectations.append(Expectation(ordinal, run[0], launches, 2, family, case=case))
    rows = [
        row
        for ordinal, window in enumerate(windows)
        for row in (_mark(Mark.OPEN, ordinal), *window, _mark(Mark.CLOSE, ordinal))
    ]
    for _ in range(draw(st.integers(0, 3))):
        rows = draw(_struck(rows))
    return rows, expectations


@st.composite
def _near(draw, run):
    """Return the call with one difference, as CANN may convert it."""
    kernel, inputs, outputs = run
    place = draw(st.integers(0, len(inputs)))
    more = draw(st.one_of(_SLOT, st.just(_BLANK)))
    if place < len(inputs) and inputs[place] != _BLANK and draw(st.booleans()):
        shape, dtype, layout = inputs[place]
        others = st.tuples(st.sampled_from(_DTYPES), st.just(layout))
        changed = (shape, *draw(st.one_of(others, st.just((dtype, _other(layout))))))
        return kernel, [*inputs[:place], changed, *inputs[place + 1 :]], outputs
    return draw(
        st.sampled_from(
            [
                (kernel, [*inputs[:place], more, *inputs[place + 1 :]], outputs),
                (kernel, [*inputs[:place], more, *inputs[place:]], outputs),
                (kernel, [*inputs[:1], *reversed(inputs[1:])], outputs),
                (kernel, inputs, [*outputs, ("4,8", "FLOAT", "ND")]),
            ]
        ).filter(lambda near: near[1][0] != _BLANK)
    )


def _other(layout):
    return _FORMATS[1 - _FORMATS.index(layout)]


@st.composite
def _struck(draw, rows):
    """Lose, duplicate or exchange rows, or change the cells of all launches."""
    one, other = (draw(st.integers(0, len(rows) - 1)) for _ in range(2))
    exchanged = list(rows)
    exchanged[one], exchanged[other] = rows[other], rows[one]
    hidden = draw(st.sampled_from([*INPUT_CELLS, *OUTPUT_CELLS]))
    changes = [
        _respelled,
        _without_trailing_blanks,
        _without_blanks,
        lambda row: replace(row, cells={**row.cells, hidden: "N/A"}),
    ]
    change = draw(st.sampled_from(changes))
    changed = [row if row.ran is None else change(row) for row in rows]
    return draw(
        st.sampled_from(
            [
                rows[:one] + rows[one + 1 :],
                rows[: one + 1] + rows[one:],
                exchanged,
                changed,
                changed,
            ]
        ).filter(bool)
    )


def _work(kernel, inputs, outputs):
    """Return the work of a launch: elements, dtype and layout of each tensor at its position.
    Packed 64-bit dtypes are equal, as are a number's two spellings; see identity.py."""
    is_quantised = any(slot is not None and slot[1] == "INT8" for slot in inputs)

    def reported(slot, packs):
        if slot is None:
            return None
        count, dtype, layout = slot
        return count, "INT64" if packs and dtype == "UINT64" else dtype, layout

    return (
        kernel,
        [reported(s, is_quantised) for s in _cut(inputs)],
        [reported(s, False) for s in outputs],
    )


def _cut(side):
    side = list(side)
    while side and side[-1] is None:
        side.pop()
    return side


def _of_run(run):
    def slot(reported):
        shape, dtype, layout = reported
        return None if reported == _BLANK else (shape, dtype, layout)

    kernel, inputs, outputs = run
    return _work(kernel, [slot(s) for s in inputs], [slot(s) for s in outputs])


def _of_filed(kernel, cells):
    """Return the work of a case by its cells, without the reader that attribution uses."""
    names = {new: old for old, new in _SPELLINGS.items()}

    def side(columns):
        texts = [cells[name].split(";") for name in columns]
        slots = zip(*([names.get(t, t) for t in text] for text in texts), strict=True)
        return [None if slot[1] in ("", "DT_UNDEFINED") else slot for slot in slots]

    return _work(kernel, side(INPUT_CELLS), side(OUTPUT_CELLS))


@given(_damaged())
@settings(max_examples=300)
def test_proved_duration_is_recorded_under_the_kernel_that_ran(damaged):
    rows, expectations = damaged
    for ordinal, found in attribute(rows, expectations).items():
        expected = expectations[ordinal]
        instead = found.substitution
        if found.lost or (instead and not instead.is_filed):
            continue
        assert len(found.repeats) == expected.repeats
        ran = [_of_run(row.ran) for row in found.repeats]
        if instead is None and found.identity.is_proved:
            correct = _of_requested(expected)
        elif instead is not None and instead.cells and "N/A" not in dict(instead.cells).values():
            correct = _of_filed(instead.kernel_type, dict(instead.cells))
        else:
            continue
        assert ran == [correct] * len(ran)


def _of_requested(expected):
    def side(slots):
        text = [(",".join(map(str, s.shape or ())), s.dtype, s.format) for s in slots or ()]
        return [None if dtype == "DT_UNDEFINED" else (shape, dtype, f) for shape, dtype, f in text]

    case = expected.case
    return _work(case.kernel_type, side(case.inputs), side(case.outputs))
