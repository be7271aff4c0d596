"""Measurements and records as rows of a state."""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from collector.codec.canonical import canonical_json
from collector.codec.errors import BadInput
from collector.database.state import CASE_SCHEMA, PROFILE_SCHEMA, TEXT
from collector.database.versions import plan_rank
from collector.model.case import normal_kernel_type
from collector.model.measurement import (
    TIMING_FIELDS,
    Disturbance,
    Outcome,
    Timing,
    measurement_id_of,
)
from collector.model.plan import Plan
from collector.model.record import CaseRecord
from collector.model.row import (
    ABSENT,
    COLUMNS,
    ROW_COLUMNS,
    WHOLE_NUMBER,
    Column,
    is_header,
    value_of,
)
from collector.model.vocabulary import BASE_CELLS

# Measurements as a table of text, with every row checked. It is the same as
# `worker.attempt.read_part`, which reads row by row; here it is read a column at a time, since a
# merge reads hundreds of thousands of rows.

_MOST_BLOCK_BYTES = (1 << 31) - 1
_WHOLE = f"^({WHOLE_NUMBER})$"
# Lists that are valid without decoding: names without escapes, and numbers far from overflow.
_NUMBER = r"-?(?:0|[1-9][0-9]{0,19})(?:\.[0-9]{1,30})?(?:[eE](?:\+?[0-9]{1,2}|-[0-9]{1,3}))?"
_PAIR = rf'\["[^"\\\x00-\x1f]*",{_NUMBER}\]'
_COUNT = r"(?:0|[1-9][0-9]{0,14})\.0"
_SHARE = r"(?:0|[1-9][0-9]{0,4})\.(?:0|[0-9]{0,3}[1-9])"
# The fields that every disturbance has, and its optional fields.
_FIELD = {
    field.name: rf'\["{field.name}",{_SHARE if field.name.endswith(("_share", "_w")) else _COUNT}\]'
    for field in fields(Disturbance)
}
_REQUIRED = [_FIELD[field.name] for field in fields(Disturbance) if field.default is not None]
_OPTIONAL = [f"(?:,{_FIELD[f.name]})?" for f in fields(Disturbance) if f.default is None]
_PLAIN = {
    "counters": rf"^(?:\[{_PAIR}(?:,{_PAIR})*\])?$",
    "disturbance": rf"^(?:\[{','.join(_REQUIRED)}{''.join(_OPTIONAL)}\])?$",
}


def rows_of_part(data: bytes, *, key: str) -> pa.Table:
    """Return the rows of a part. Raises BadInput, which names the key, for other data."""
    if b"\0" in data:
        raise BadInput("expected a part, got a file with a NUL byte", path=key)
    try:
        table = pa_csv.read_csv(
            io.BytesIO(data),
            # One block, because the reader refuses a row that is longer than a block.
            read_options=pa_csv.ReadOptions(
                use_threads=False, block_size=min(len(data) + 1, _MOST_BLOCK_BYTES)
            ),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(ROW_COLUMNS, TEXT), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        raise BadInput(f"expected a part: {error}", path=key) from error
    if not is_header(table.column_names):
        raise BadInput("expected a part with one column per field of a measurement", path=key)
    table = with_columns(table)
    check_rows(table, key)
    return table


def with_columns(table: pa.Table, names: Sequence[str] = ROW_COLUMNS) -> pa.Table:
    """Return the table with these columns in their order, followed by its other columns. A column
    that it lacks has the text of its default in every row, and is left out if it has none."""
    columns = {
        name: table[name]
        if name in table.column_names
        else pa.array([ABSENT[name]] * table.num_rows, TEXT)
        for name in names
        if name in table.column_names or name in ABSENT
    }
    more = {name: table[name] for name in table.column_names if name not in columns}
    return pa.table(columns | more)


def check_rows(table: pa.Table, key: str) -> None:
    """Check that the rows are measurements and that each id follows from its row. Raises BadInput,
    which names the key."""
    _check_values(table, key)
    try:
        timed = table.select(TIMING_FIELDS).filter(pc.not_equal(table["mean_us"], ""))
        numbers = (_numbers(timed[name], name) for name in TIMING_FIELDS)
        for row in zip(*numbers, strict=True):
            Timing(*row)
    except (pa.ArrowInvalid, BadInput) as error:
        raise BadInput(f"invalid measurement in a row: {error}", path=key) from error
    bare = pc.and_(pc.equal(table["outcome"], Outcome.OK.value), pc.equal(table["mean_us"], ""))
    if pc.any(bare).as_py():
        raise BadInput("expected a duration in each row with outcome ok, got none", path=key)
    if wrong := _wrong_ids(table):
        raise BadInput(
            f"measurement: expected the id computed from the row, got {wrong[0]!r}", path=key
        )


def _numbers(texts: pa.ChunkedArray, name: str) -> list[float]:
    """Return the numbers of a column; 0 for an empty text, if that is its default."""
    if name in ABSENT:
        texts = pc.if_else(pc.equal(texts, ABSENT[name]), "0", texts)
    found: list[float] = texts.cast(pa.float64()).to_pylist()
    return found


def _wrong_ids(table: pa.Table) -> list[str]:
    names = ("shard", "attempt", "session", "case", "runtime", "asked", "measurement")
    rows = zip(*(table[name].to_pylist() for name in names), strict=True)
    return [
        measurement
        for shard, attempt, session, case, runtime, requested, measurement in rows
        if measurement_id_of(shard, attempt, int(session), case, runtime, requested) != measurement
    ]


def _check_values(table: pa.Table, key: str) -> None:
    for column in COLUMNS:
        cells = table[column.name]
        if column.is_list:
            is_plain = pc.match_substring_regex(cells, _PLAIN.get(column.name, "^$"))
            _check_each(column, cells.filter(pc.invert(is_plain)), key)
        elif column.words:
            if unknown := set(pc.unique(cells).to_pylist()) - set(column.words):
                raise BadInput(
                    f"{column.name}: expected one of the known values, got {min(unknown)!r}",
                    path=key,
                )
        elif column.type is int:
            wrong = cells.filter(pc.invert(pc.match_substring_regex(cells, _WHOLE)))
            if len(wrong):
                what = f"{column.name}: expected an integer >= 0, got {wrong[0].as_py()!r}"
                raise BadInput(what, path=key)
        elif column.type is float:
            _check_spelling(column, cells, key)
            if column.name not in TIMING_FIELDS or column.name in ABSENT:
                _check_each(column, cells, key)
    if pc.count_distinct(table["measurement"]).as_py() < table.num_rows:
        raise BadInput("expected each measurement once, got a duplicate", path=key)


def _check_spelling(column: Column, cells: pa.ChunkedArray, key: str) -> None:
    """Raise BadInput for a number in another spelling than Python's: a file has it as a number."""
    texts = pc.unique(cells).to_pylist()
    for text in texts:
        try:
            is_plain = not text or repr(float(text)) == text
        except ValueError:
            is_plain = False
        if not is_plain:
            raise BadInput(f"{column.name}: expected a number, got {text!r}", path=key)


def _check_each(column: Column, cells: pa.ChunkedArray, key: str) -> None:
    for text in pc.unique(cells).to_pylist():
        try:
            value_of(column.name, text)
        except BadInput as error:
            raise BadInput(str(error), path=key) from error


# The records of a plan's cases as rows of a state, each with the rank of the plan.


def case_rows(plan: Plan, records: Sequence[CaseRecord]) -> pa.Table:
    columns: dict[str, list[object]] = {
        **_key_columns(plan, records),
        "kernel_type": [normal_kernel_type(record.kernel_type) for record in records],
        **{name: [record.cells.get(name, "") for record in records] for name in BASE_CELLS},
        "extra": [canonical_json(dict(r.extra)).decode() if r.extra else "" for r in records],
    }
    return pa.table(columns, schema=CASE_SCHEMA)


def case_records(rows: pa.Table) -> Iterator[tuple[str, CaseRecord]]:
    """Yield the id and the record of each case of such rows."""
    for row in rows.to_pylist():
        cells = {name: row[name] or "" for name in BASE_CELLS}
        extra = json.loads(row["extra"]) if row["extra"] else {}
        yield row["case"], CaseRecord(row["kernel_type"], cells, extra)


def profile_rows(plan: Plan, records: Sequence[CaseRecord]) -> pa.Table:
    """Return the statistics of a source's own run. A shard only has those of the plan's stack: the
    planner leaves out the statistics of a source on another stack."""
    seen = [(record, record.profile) for record in records if record.profile is not None]
    columns: dict[str, list[object]] = {
        **_key_columns(plan, [record for record, _ in seen]),
        "stack_id": [plan.stack.stack_id] * len(seen),
        **{n: [getattr(p, n) for _, p in seen] for n in ("count", "mean_us", "median_us")},
        "std_us": [p.std_us for _, p in seen],
        "counters": [canonical_json([list(pair) for pair in p.counters]).decode() for _, p in seen],
    }
    return pa.table(columns, schema=PROFILE_SCHEMA)


def _key_columns(plan: Plan, records: Sequence[CaseRecord]) -> dict[str, list[object]]:
    head_commit, number, plan_hash = plan_rank(plan)
    rows = len(records)
    return {
        "version_path": [plan.stack.version_path] * rows,
        "case": [record.case_id for record in records],
        "head_commit": [head_commit] * rows,
        "plan": [number] * rows,
        "plan_hash": [plan_hash] * rows,
    }
