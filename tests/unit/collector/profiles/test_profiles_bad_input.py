"""Errors in a profile are reported with their line; or skipped and listed on request."""

import csv
import io
from dataclasses import replace

import pytest

from collector.codec import files
from collector.codec import table as table_module
from collector.codec.errors import BadInput
from collector.profiles import blocks
from collector.profiles import rows as rows_module
from collector.profiles.kernel_details import read_profile
from collector.profiles.launches import read_op_summary
from tests.fixtures.profiles.variants import (
    LAYOUTS,
    ProfileRow,
    collective,
    profile_bytes,
    write_profile,
)
from tests.unit.collector.naming import names, naming

pytestmark = pytest.mark.fast

COLUMNS = LAYOUTS["K5"][1].split(",")
BAD_ROW = 3  # rows 1 to 5; the header is line 1, so this one is on line 4
BAD_LINE = 4


def table():
    data = profile_bytes("K5", [ProfileRow(duration=f"{number}.000") for number in range(1, 6)])
    return list(csv.reader(io.StringIO(data.decode(), newline="")))


def written(tmp_path, rows):
    path = tmp_path / "kernel_details.csv"
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    path.write_bytes(out.getvalue().encode("utf-8", "surrogateescape"))
    return path


def with_cell(column, text):
    def damage(row):
        return [text if name == column else cell for name, cell in zip(COLUMNS, row, strict=True)]

    return damage


def shifted_left(row, *, at):
    """Remove one cell, and add an empty one at the end: as many cells as before."""
    place = COLUMNS.index(at)
    return [*row[:place], *row[place + 1 :], ""]


def shifted_right(row, *, at):
    place = COLUMNS.index(at)
    return [*row[:place], "", *row[place:-1]]


DAMAGES = {
    "one cell less": (lambda row: row[:-1], (47, 46)),
    "one cell more": (lambda row: [*row, "0"], (47, 48)),
    "a single cell": (lambda row: row[:1], (47, 1)),
    "text as duration": (with_cell("Duration(us)", "long"), ("Duration(us)",)),
    "no duration": (with_cell("Duration(us)", ""), ("Duration(us)",)),
    "duration unknown": (with_cell("Duration(us)", "N/A"), ("Duration(us)",)),
    "negative duration": (with_cell("Duration(us)", "-1.0"), ("Duration(us)",)),
    "infinite duration": (with_cell("Duration(us)", "inf"), ("Duration(us)",)),
    "duration nan": (with_cell("Duration(us)", "nan"), ("Duration(us)",)),
    "text as counter": (with_cell("aic_mac_ratio", "high"), ("aic_mac_ratio",)),
    "counter nan": (with_cell("aiv_time(us)", "nan"), ("aiv_time(us)",)),
    "shape as dtype": (with_cell("Input Data Types", "4096,1024"), ("Input Data Types",)),
    "number as format": (with_cell("Output Formats", "5.512"), ("Output Formats",)),
    "dtype as shape": (with_cell("Input Shapes", "FLOAT;FLOAT"), ("Input Shapes", "shape")),
    "negative dimension": (with_cell("Output Shapes", '"-1,4"'), ("Output Shapes", "negative")),
    "number as core": (with_cell("Accelerator Core", "1.5"), ("Accelerator Core",)),
    "core as state": (with_cell("OP State", "AI_CORE"), ("OP State",)),
    "a path as type": (with_cell("Type", "../x"), ("kernel type",)),
    "a separator in type": (with_cell("Type", "a/b"), ("kernel type",)),
    "no type": (with_cell("Type", "a b"), ("kernel type",)),
    "shifted at Name": (lambda row: shifted_left(row, at="Name"), ("Accelerator Core",)),
    "shifted at OP State": (
        lambda row: shifted_left(row, at="OP State"),
        ("Accelerator Core",),
    ),
    "shifted at Wait": (
        lambda row: shifted_left(row, at="Wait Time(us)"),
        ("Input Formats",),
    ),
    "shifted the other way": (
        lambda row: shifted_right(row, at="HF32 Eligible"),
        ("Input Data Types",),
    ),
    "latin-1 in a name": (with_cell("Name", "caf\udce9"), ("UTF-8",)),
}


@pytest.mark.parametrize("damage, named", DAMAGES.values(), ids=DAMAGES.keys())
def test_bad_row_is_refused_with_its_line(tmp_path, damage, named):
    rows = table()
    rows[BAD_ROW] = damage(rows[BAD_ROW])
    path = written(tmp_path, rows)
    with pytest.raises(BadInput, match=naming(*named)) as error:
        read_profile([path])
    assert (error.value.path, error.value.line) == (path, BAD_LINE)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage, named", DAMAGES.values(), ids=DAMAGES.keys())
def test_bad_row_is_skipped_and_listed_on_request(tmp_path, damage, named):
    rows = table()
    rows[BAD_ROW] = damage(rows[BAD_ROW])
    path = written(tmp_path, rows)
    profile = read_profile([path], skip_bad_rows=True)
    (skipped,) = profile.report.skipped
    assert (skipped.path, skipped.line) == (path, BAD_LINE)
    assert names(skipped.reason, *named)
    assert profile.report.rows == 4
    (record,) = profile.records
    assert record.profile.mean_us == (1 + 2 + 4 + 5) / 4


@pytest.mark.parametrize("name", ["one cell less", "text as duration", "latin-1 in a name"])
def test_launches_are_refused_with_the_line_too(tmp_path, name):
    damage, named = DAMAGES[name]
    rows = table()
    rows[BAD_ROW] = damage(rows[BAD_ROW])
    path = written(tmp_path, rows)
    with pytest.raises(BadInput, match=naming(*named)) as error:
        list(read_op_summary(path))
    assert error.value.line == BAD_LINE


def test_start_time_in_exponent_notation_is_refused_for_launches_only(tmp_path):
    rows = table()
    rows[BAD_ROW] = with_cell("Start Time(us)", "1.69512E+15")(rows[BAD_ROW])
    path = written(tmp_path, rows)
    with pytest.raises(BadInput, match=naming(f"kernel_details.csv:{BAD_LINE}:", "Start Time(us)")):
        list(read_op_summary(path))
    assert read_profile([path]).report.rows == 5  # durations are read from it as from any other


def test_first_of_several_bad_rows_is_reported(tmp_path):
    rows = table()
    rows[2], rows[4] = rows[2][:-1], with_cell("Type", "../x")(rows[4])
    path = written(tmp_path, rows)
    with pytest.raises(BadInput) as error:
        read_profile([path])
    assert error.value.line == 3
    skipped = read_profile([path], skip_bad_rows=True).report.skipped
    assert [row.line for row in skipped] == [3, 5]


def test_lines_are_counted_through_cells_of_several_lines(tmp_path):
    rows = table()
    rows[1] = with_cell("Name", "a kernel\r\nof three\nlines")(rows[1])
    rows[BAD_ROW] = rows[BAD_ROW][:-1]
    with pytest.raises(BadInput) as error:
        read_profile([written(tmp_path, rows)])
    assert error.value.line == BAD_LINE + 2


@pytest.mark.parametrize(
    "data, named, line",
    [
        (b"", ("empty",), None),
        (b"\r\n\r\n", ("empty",), None),
        (profile_bytes("K5", []), ("header",), 1),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 7\n",
            ("git lfs pull",),
            None,
        ),
        (profile_bytes("K5", [ProfileRow()]).decode().encode("utf-16"), ("UTF-16",), 1),
        (b"PK\x03\x04\n\0\0\x08", ("binary",), 2),
        (profile_bytes("K5", [ProfileRow(), ProfileRow(name="a\0b")]), ("binary",), 3),
        ("Größe,Type\n1,2\n".encode("latin-1"), ("UTF-8",), 1),
        (
            profile_bytes("K5", [ProfileRow()]) + b'"unclosed,' + b"1,2\n" * 40_000,
            ("quote",),
            3,
        ),
    ],
    ids=[
        "empty",
        "blank lines",
        "header alone",
        "git-lfs pointer",
        "UTF-16",
        "binary",
        "a NUL in a row",
        "latin-1 header",
        "a quote left open",
    ],
)
def test_file_that_is_not_a_profile_is_refused(tmp_path, data, named, line):
    path = tmp_path / "kernel_details.csv"
    path.write_bytes(data)
    with pytest.raises(BadInput, match=naming(*named)) as error:
        read_profile([path])
    assert (error.value.path, error.value.line) == (path, line)


@pytest.mark.parametrize("data", [b"", b"\0", b"a,b\n1,2\n", profile_bytes("K5", [])])
def test_file_that_is_not_a_profile_is_skipped_on_request(tmp_path, data):
    path = tmp_path / "kernel_details.csv"
    path.write_bytes(data)
    with pytest.raises(BadInput) as error:
        read_profile([path])
    good = write_profile(tmp_path / "good", "K5", [ProfileRow()])
    profile = read_profile([tmp_path], skip_bad_rows=True)
    assert profile.report.unusable == (str(error.value),)
    assert str(path) in str(error.value)
    assert profile.report.files == (good,) and len(profile.records) == 1
    assert read_profile([path], skip_bad_rows=True).records == ()


def test_unclosed_quote_at_the_end_is_a_short_row(tmp_path):
    path = tmp_path / "kernel_details.csv"
    path.write_bytes(profile_bytes("K5", [ProfileRow()]) + b'13,0,"4294967295\r\n')
    with pytest.raises(BadInput, match=naming(47, 3)) as error:
        read_profile([path])
    assert error.value.line == 3


def test_a_file_of_bad_rows_alone_has_no_rows(tmp_path):
    path = written(tmp_path, [table()[0], ["1", "2"]])
    profile = read_profile([path], skip_bad_rows=True)
    (why,) = profile.report.unusable
    assert profile.records == () and names(why, f"{path}:1:", "header")


def test_one_bad_file_among_good_ones_is_reported(tmp_path):
    for rank in range(3):
        folder = tmp_path / f"rank{rank}"
        folder.mkdir()
        rows = [table()[0], *map(with_cell("Device_id", str(rank)), table()[1:])]
        if rank == 1:
            rows[2] = rows[2][:-1]
        written(folder, rows)
    with pytest.raises(BadInput) as error:
        read_profile([tmp_path])
    assert (error.value.path, error.value.line) == (tmp_path / "rank1" / "kernel_details.csv", 3)
    assert read_profile([tmp_path], skip_bad_rows=True).report.rows == 14


def test_overlong_lines_and_rows_are_refused_within_bounds(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST_LINE", 10_000)
    monkeypatch.setattr(table_module, "LONGEST_ROW", 20_000)
    monkeypatch.setattr(rows_module, "_MOST_BLANK", 100)
    monkeypatch.setattr(blocks, "PIECE_BYTES", 5_000)
    data, path = profile_bytes("K5", [ProfileRow()]), tmp_path / "kernel_details.csv"
    for tail, line in (
        (b"x" * 20_000, 3),
        (b" " * 20_000, 3),
        (b'"\n",' * 10_000, 3),
        (b"\r" * 20_000, 103),
        (b" \n" * 200, 103),
    ):
        path.write_bytes(data + tail)
        with pytest.raises(BadInput) as error:
            read_profile([path])
        assert (error.value.path, error.value.line) == (path, line), tail[:4]
        assert read_profile([path], skip_bad_rows=True).report.unusable == (str(error.value),)
    path.write_bytes(b"x" * 20_000)
    with pytest.raises(BadInput) as error:
        read_profile([path])
    assert error.value.line == 1
    for tail in (b" \n" * 90, b"\n" * 20_000):  # blank lines are not rows
        path.write_bytes(data + tail)
        assert read_profile([path]).report.rows == 1


def test_file_of_too_many_bad_rows_is_unusable(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "_MOST_SKIPPED", 3)
    path = tmp_path / "kernel_details.csv"
    for bad, unusable in ((3, 0), (4, 1)):
        path.write_bytes(profile_bytes("K5", [ProfileRow()]) + b"1,2\n" * bad)
        report = read_profile([path], skip_bad_rows=True).report
        assert (len(report.unusable), len(report.skipped)) == (unusable, 0 if unusable else bad)


OVERFLOWN = "18446744073709551.615"  # 2 ** 64 - 1 ns


def timed(*launches, **more):
    """Return launches of one stream by their start and duration, in microseconds."""
    return [
        ProfileRow(start=f"1764246877{start:06d}.000\t", duration=duration, **more)
        for start, duration in launches
    ]


def test_impossible_duration_is_refused_or_skipped(tmp_path):
    """Return profiles with an impossible row on line 3."""
    queue = ((0, "2.5"), (10, OVERFLOWN), (20, "2.7"), (30, "100"))
    damages = {
        "overflown": timed(*queue),
        "overflown at the end": timed(*queue[:2]),
        "beyond the next launch": timed((0, "2.5"), (10, "1500.0"), (20, "2.7")),
        "beyond the profile": timed((0, "2.5"), (10, "3600000000"), stream="N/A"),
        "without starts": [replace(row, start="N/A") for row in timed(*queue)],
        "zero": timed((0, "2.5"), (10, "0.000"), (20, "2.7")),
    }
    for name, rows in damages.items():
        path = write_profile(tmp_path / name, "K5", rows)
        with pytest.raises(BadInput) as error:
            read_profile([path])
        assert (error.value.path, error.value.line) == (path, 3), name
        report = read_profile([path], skip_bad_rows=True).report
        assert ([row.line for row in report.skipped], report.rows) == ([3], len(rows) - 1), name


def test_launches_that_may_overlap_are_accepted(tmp_path):
    rows = {
        "other streams": [*timed((0, "9000.0")), *timed((10, "2.7"), stream="3")],
        "parts of one task": timed(
            (0, "9000.0"), (10, "8000.0"), (9500, "3.0"), other={"Context ID": "0"}
        ),
        "a short overlap": timed((0, "12.0"), (10, "2.7")),
        "the last one": timed((0, "2.5"), (10, "9000000.0")),
        "communication": [collective("1.000", "9000.0", stream="2"), *timed((0, "2.5"))],
    }
    for name, reported in rows.items():
        path = write_profile(tmp_path / name, "K5", reported)
        assert read_profile([path]).report.rows == len(reported), name


def test_start_is_a_time_or_unknown(tmp_path):
    for text, is_read in (("", True), ("N/A", True), ("1.76e+15", True), ("soon", False)):
        rows = [ProfileRow(), ProfileRow(start=text)]
        path = write_profile(tmp_path / (text or "empty").replace("/", ""), "K5", rows)
        report = read_profile([path], skip_bad_rows=True).report
        assert (report.rows, len(report.skipped)) == ((2, 0) if is_read else (1, 1)), text
