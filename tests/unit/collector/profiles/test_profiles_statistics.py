"""The statistics of a profile equal those of a plain loop over its rows."""

import csv
import io
import random
import statistics
from collections import defaultdict
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.model.case import case_from_cells
from collector.model.vocabulary import BASE_CELLS, COUNTERS
from collector.profiles import blocks
from collector.profiles.kernel_details import read_profile
from tests.fixtures.profiles.variants import ProfileRow, profile_bytes, write_profile

_NUMBERS = st.integers(1, 10**6).map(lambda thousandths: f"{thousandths / 1000:.3f}")
_SHAPES = st.sampled_from(['"4,2;4,2"', "4,2;4,2", '"4,2;"', '""', '"16"', '";;"', '"4,2;;8"'])
_COUNTERS = st.dictionaries(
    st.sampled_from(COUNTERS), st.one_of(_NUMBERS, st.just("N/A"), st.just("")), max_size=4
)
_ROWS = st.builds(
    ProfileRow,
    kernel=st.sampled_from(["Add", "Cast", "_triton_rope"]),
    shapes=_SHAPES,
    dtypes=st.sampled_from(["FLOAT;FLOAT", "DT_BF16;INT64", "FLOAT"]),
    out_dtypes=st.sampled_from(["FLOAT", "N/A"]),
    core=st.sampled_from(["AI_CORE", "MIX_AIV"]),
    duration=_NUMBERS,
    name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
    other=_COUNTERS,
)


def naive(data):
    """Return case id -> (first cells, durations, numbers of each counter), by the csv module
    alone."""
    found = {}
    for row in csv.DictReader(io.StringIO(data.decode(), newline="")):
        cells = {name: row[name] for name in BASE_CELLS}
        case_id = case_from_cells(row["Type"], cells).case_id
        first, durations, counters = found.setdefault(case_id, (cells, [], defaultdict(list)))
        durations.append(float(row["Duration(us)"]))
        for name in COUNTERS:
            if row[name] not in ("N/A", ""):
                counters[name].append(float(row[name]))
    return found


def assert_as_a_plain_loop_finds(path):
    records = read_profile([path]).records
    expected = naive(path.read_bytes())
    assert [record.case_id for record in records] == list(expected)
    for record in records:
        cells, durations, counters = expected[record.case_id]
        profile = record.profile
        assert record.cells == cells
        assert profile.count == len(durations)
        assert profile.mean_us == pytest.approx(statistics.fmean(durations))
        assert profile.median_us == pytest.approx(statistics.median(durations))
        assert profile.std_us == pytest.approx(statistics.pstdev(durations), abs=1e-6)
        assert dict(profile.counters) == pytest.approx(
            {name: statistics.fmean(numbers) for name, numbers in counters.items()}
        )


@given(st.lists(_ROWS, min_size=1, max_size=30))
@settings(max_examples=60)
def test_statistics_equal_those_of_a_plain_loop(tmp_path_factory, rows):
    assert_as_a_plain_loop_finds(write_profile(tmp_path_factory.mktemp("profile"), "K5", rows))


@pytest.mark.parametrize("name", ["aclnnAdd_Add", "a name\nof two lines"])
def test_statistics_of_a_file_read_in_pieces_equal_a_plain_loop(tmp_path, monkeypatch, name):
    """If a cell contains a line end, a piece may end inside it: then the slow reader is used."""
    monkeypatch.setattr(blocks, "PIECE_BYTES", 1 << 17)
    rng = random.Random(7)
    rows = [
        ProfileRow(
            f"Kernel{rng.randrange(9)}",
            f'"{rng.randrange(1, 9)},16"',
            duration=f"{rng.random() * 1000:.3f}",
            name=name,
            other={counter: f"{rng.random():.3f}" for counter in COUNTERS[:-1]},
        )
        for _ in range(1_400)
    ]
    path = write_profile(tmp_path, "K5", rows)
    assert path.stat().st_size > 2 * blocks.PIECE_BYTES
    assert_as_a_plain_loop_finds(path)


@given(st.lists(_ROWS, min_size=1, max_size=20), st.integers(0, 20))
@settings(max_examples=40)
def test_slow_reader_equals_the_fast_one(tmp_path_factory, rows, place):
    folder = tmp_path_factory.mktemp("profile")
    plain = read_profile([write_profile(folder / "plain", "K5", rows)])
    lines = list(csv.reader(io.StringIO(profile_bytes("K5", rows).decode(), newline="")))
    lines.insert(1 + min(place, len(rows)), ["ragged"])
    damaged = folder / "kernel_details.csv"
    with damaged.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)
    repaired = read_profile([damaged], skip_bad_rows=True)
    assert len(repaired.report.skipped) == 1
    assert [record.cells for record in repaired.records] == [
        record.cells for record in plain.records
    ]
    for mine, theirs in zip(repaired.records, plain.records, strict=True):
        assert mine.profile.count == theirs.profile.count
        assert mine.profile.mean_us == pytest.approx(theirs.profile.mean_us)
        assert dict(mine.profile.counters) == pytest.approx(dict(theirs.profile.counters))


@given(st.lists(st.lists(_ROWS, min_size=1, max_size=6), min_size=2, max_size=3))
@settings(max_examples=30)
def test_several_files_in_any_order_give_the_same_statistics(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("profile")
    layouts = ("K5", "O2", "K4")  # two of one family of counters, one of another
    paths = [
        write_profile(
            folder / str(at),
            layout,
            [replace(row, start=f"17642468{at}{place:05d}.5") for place, row in enumerate(rows)],
        )
        for at, (layout, rows) in enumerate(zip(layouts, files, strict=False))
    ]
    results = []
    for order in permutations(paths):
        records = read_profile(order).records
        results.append({record.case_id: record.profile for record in records})
    for other in results[1:]:
        assert other.keys() == results[0].keys()
        for case_id, profile in other.items():
            first = results[0][case_id]
            assert (profile.count, profile.median_us) == (first.count, first.median_us)
            assert (profile.mean_us, profile.std_us) == (first.mean_us, first.std_us)
            assert dict(profile.counters) == pytest.approx(dict(first.counters))


def test_files_with_other_counters_add_them(tmp_path):
    first = write_profile(tmp_path / "a", "K5", [ProfileRow(other={"aic_mac_ratio": "0.5"})])
    second = write_profile(
        tmp_path / "b", "K4", [ProfileRow(duration="7.0", other={"vec_ratio": "0.25"})]
    )
    (record,) = read_profile([first, second]).records
    assert record.profile.count == 2
    assert dict(record.profile.counters) == {"aic_mac_ratio": 0.5, "vec_ratio": 0.25}


def test_rows_are_distinguished_beyond_64_bits_of_combinations(tmp_path):
    """300 rows that differ in nine columns: 300 ** 9 combinations do not fit into 64 bits."""
    rows = [
        ProfileRow(
            f"Kernel{at}",
            f'"{at},1"',
            f"T{at}",
            f"F{at}",
            f'"{at},2"',
            f"U{at}",
            f"G{at}",
            f"CORE_{at}",
            "s" * (at + 1),
        )
        for at in range(300)
    ]
    profile = read_profile([write_profile(tmp_path, "K5", [*rows, *rows])])
    assert [record.kernel_type for record in profile.records] == [row.kernel for row in rows]
    assert {record.profile.count for record in profile.records} == {2}
