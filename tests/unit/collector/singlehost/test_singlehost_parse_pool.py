"""`tree parse --pool`: profiles parsed one after the other, as if they had been parsed together."""

import csv
import json
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.database.layout import COMMUNICATION_REPORT, PARSED_PROFILES
from collector.database.tree import read_kernel_file
from collector.profiles.run_files import MOST
from collector.profiles.run_files import sketches_match as are_of_one_run
from collector.singlehost.parse import parse_profile
from tests.fixtures.profiles.variants import ProfileRow, collective, unknown_inputs, write_profile
from tests.unit.collector.database.consumer import Consumer
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

ROUNDING = 3e-6  # of cells with six decimals, pooled three times
AVERAGE, STD = "Profiling Average Duration(us)", "Profiling Std Duration(us)"
MEDIAN, MAC = "Profiling Median Duration(us)", "Profiling Average aic_mac_ratio"
pooling = partial(parse_profile, pool=True)


@pytest.fixture
def version(tmp_path):
    return tmp_path / "tree" / "vllm0.18.0_torch2.9.0_cann8.5"


def profile(folder, durations, start=0, **reported):
    """Write a file of launches of one Add, which begin one after the other."""
    rows = [
        ProfileRow(duration=f"{us:.3f}", start=f"1764246877{start + at:06d}.960\t", **reported)
        for at, us in enumerate(durations)
    ]
    return write_profile(folder, "K5", rows)


def row_of(version, kernel="Add"):
    (row,) = read_kernel_file(version / f"{kernel}.csv").rows
    return row


def test_means_and_spreads_are_pooled_by_counts(tmp_path, version):
    pooling([profile(tmp_path / "a", [10.0] * 8)], version)
    result = pooling([profile(tmp_path / "b", [20.0, 20.0], start=100)], version)
    assert [(k.added, k.updated) for k in result.kernels.values()] == [(0, 1)]
    row = row_of(version)
    assert (row["Profiling Count"], row[AVERAGE], row[STD]) == ("10", "12.000000", "4.000000")
    assert row[MEDIAN] == ""
    assert Consumer(version).durations("Add")


_CELLS = st.sampled_from(["0.5", "0.125", "N/A"])
_LAUNCHES = st.lists(
    st.tuples(
        st.sampled_from(["Add", "Cast"]),
        st.sampled_from(["FLOAT;FLOAT", "INT8;INT8"]),
        st.integers(1, 10**6),
        _CELLS,
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.thorough
@given(st.lists(_LAUNCHES, min_size=2, max_size=3))
@settings(max_examples=40, deadline=None)
def test_pooling_one_by_one_equals_pooling_together(tmp_path_factory, runs):
    folder = tmp_path_factory.mktemp("pool")
    starts = iter(range(10**6))
    files = [
        write_profile(
            folder / str(at),
            "K5",
            [
                ProfileRow(
                    kernel,
                    dtypes=dtypes,
                    duration=f"{thousandths / 1000:.3f}",
                    start=f"17642468{next(starts):06d}.5",
                    other={"aic_mac_ratio": mac},
                )
                for kernel, dtypes, thousandths, mac in run
            ],
        )
        for at, run in enumerate(runs)
    ]
    pooling(files, folder / "together")
    for file in files:
        pooling([file], folder / "apart")
    names = sorted(path.name for path in (folder / "together").glob("*.csv"))
    assert names == sorted(path.name for path in (folder / "apart").glob("*.csv"))
    for name in names:
        one, other = (read_kernel_file(folder / tree / name).rows for tree in ("together", "apart"))
        for mine, theirs in zip(one, other, strict=True):
            assert mine["Input Data Types"] == theirs["Input Data Types"]
            assert mine["Profiling Count"] == theirs["Profiling Count"]
            for column in (AVERAGE, STD):
                assert float(mine[column]) == pytest.approx(float(theirs[column]), abs=ROUNDING)
            assert bool(mine[MAC]) == bool(theirs[MAC])
            if mine[MAC]:
                assert float(mine[MAC]) == pytest.approx(float(theirs[MAC]), abs=ROUNDING)


def test_run_counts_once_under_any_name(tmp_path, version):
    rows = [
        ProfileRow(duration=f"{at + 1}.000", start=f"17642468770{at:02d}.960\t") for at in range(20)
    ]
    pooling([write_profile(tmp_path / "a", "K5", rows)], version)
    before = (version / "Add.csv").read_bytes()
    for again in (
        write_profile(tmp_path / "renamed", "K5", rows),
        write_profile(tmp_path / "as_summary", "O3", rows),
        write_profile(tmp_path / "shorter", "K5", rows[:12]),
        write_profile(tmp_path / "no_device", "K7", [replace(row, device="") for row in rows]),
        write_profile(tmp_path / "no_start", "K5", [replace(rows[0], start="N/A"), *rows[1:]]),
    ):
        with pytest.raises(BadInput, match=naming(f"{again}:", "kernel_details.csv")):
            pooling([again], version)
    assert (version / "Add.csv").read_bytes() == before


def test_file_without_starts_is_identified_by_its_bytes(tmp_path, version):
    file = write_profile(tmp_path / "a", "K5", [ProfileRow(start="N/A")])
    pooling([file], version)
    with pytest.raises(BadInput, match=naming(f"{file}:")):
        pooling([file], version)
    pooling(
        [write_profile(tmp_path / "b", "K5", [ProfileRow(start="N/A", duration="1.0")])], version
    )
    assert row_of(version)["Profiling Count"] == "2"


def test_rows_without_a_count_are_not_pooled(tmp_path, version):
    parse_profile([profile(tmp_path / "a", [10.0])], version)
    assert not (version / PARSED_PROFILES).exists()
    before = (version / "Add.csv").read_bytes()
    with pytest.raises(BadInput, match=naming("--pool", "Profiling Count")):
        pooling([profile(tmp_path / "b", [20.0], start=9)], version)
    assert (version / "Add.csv").read_bytes() == before


def test_counts_without_the_names_of_their_runs_are_not_pooled(tmp_path, version):
    pooling([profile(tmp_path / "a", [10.0])], version)
    (version / PARSED_PROFILES).unlink()
    with pytest.raises(BadInput, match=naming("--pool", "Profiling Count")):
        pooling([profile(tmp_path / "b", [20.0], start=9)], version)


def test_without_the_flag_a_pooled_row_is_replaced_with_its_count(tmp_path, version):
    pooling([profile(tmp_path / "a", [10.0, 30.0])], version)
    newer = profile(tmp_path / "b", [5.0], start=50)
    parse_profile([newer], version)
    row = row_of(version)
    assert (row["Profiling Count"], row[AVERAGE], row[MEDIAN]) == ("1", "5.000000", "5.000000")
    with pytest.raises(BadInput, match=naming(f"{newer}:")):
        pooling([newer], version)


def test_rows_without_a_profile_are_filled_by_the_first_one(tmp_path, version):
    pooling([profile(tmp_path / "a", [10.0])], version)
    path = version / "Add.csv"
    path.write_bytes(path.read_bytes().replace(b"10.000000", b"").replace(b",1\r\n", b",\r\n"))
    pooling([profile(tmp_path / "b", [20.0, 40.0], start=9)], version)
    assert (row_of(version)["Profiling Count"], row_of(version)[AVERAGE]) == ("2", "30.000000")


def test_interrupted_pooling_is_refused(tmp_path, version):
    version.mkdir(parents=True)
    (version / "unknown_inputs").write_text("in the way")
    rows = [ProfileRow(), unknown_inputs("MemSet")]
    with pytest.raises(BadInput, match=naming("unknown_inputs")):
        pooling([write_profile(tmp_path / "a", "K5", rows)], version)
    assert (version / "Add.csv").exists()
    with pytest.raises(BadInput, match=naming(f"{version / PARSED_PROFILES}:", "--pool")):
        pooling([profile(tmp_path / "b", [20.0], start=9)], version)


def test_collectives_and_unknown_inputs_are_pooled_too(tmp_path, version):
    for at, us in enumerate(("10.000", "30.000")):
        start = f"17642468770{at}"
        rows = [
            unknown_inputs("MemSet", duration=us, start=f"{start}0.5"),
            collective(f"{start}1.5", us),
        ]
        pooling([write_profile(tmp_path / str(at), "K5", rows)], version)
    with (version / COMMUNICATION_REPORT).open(newline="") as file:
        (reported,) = csv.DictReader(file)
    assert (reported["Count"], reported["Total Duration(us)"]) == ("2", "40.000000")
    assert (reported["Average Duration(us)"], reported["Std Duration(us)"]) == (
        "20.000000",
        "10.000000",
    )
    assert (reported["Min Duration(us)"], reported["Max Duration(us)"]) == (
        "10.000000",
        "30.000000",
    )
    (row,) = read_kernel_file(version / "unknown_inputs" / "MemSet.csv").rows
    assert (row["Profiling Count"], row[AVERAGE]) == ("2", "20.000000")


@pytest.mark.parametrize("cell", ["0", "-1", "x", "1.5"])
def test_invalid_count_is_refused(tmp_path, version, cell):
    pooling([profile(tmp_path / "a", [10.0])], version)
    path = version / "Add.csv"
    file = read_kernel_file(path)
    row = {**file.rows[0], "Profiling Count": cell}
    path.write_bytes(replace(file, rows=(row,)).as_bytes())
    with pytest.raises(BadInput, match=naming("Profiling Count", repr(cell))):
        pooling([profile(tmp_path / "b", [20.0], start=9)], version)


@pytest.mark.parametrize(
    "text", ["{}x", '{"profiles": [{"profile": "a", "is_whole": true, "launches": ["z"]}]}']
)
def test_invalid_list_of_profiles_is_refused(tmp_path, version, text):
    (version / PARSED_PROFILES).parent.mkdir(parents=True)
    (version / PARSED_PROFILES).write_text(text)
    with pytest.raises(BadInput):
        pooling([profile(tmp_path / "a", [10.0])], version)


def test_samples_of_large_runs_are_compared_up_to_the_shorter_one():
    whole = range(0, 40 * MOST, 2)
    assert are_of_one_run(whole[:MOST], whole[::10][:MOST])  # a tenth of it
    assert not are_of_one_run(whole[:MOST], range(1, 2 * MOST, 2)[:MOST])
    assert not are_of_one_run(whole[:MOST], [10**9])


def test_several_releases_of_cann_in_one_tree_are_reported(tmp_path, version):
    """The name of the tree contains 8.5."""
    runs = {}
    for at, release in enumerate(("8.5.RC1", "8.5", "9.1.0", "")):
        run = tmp_path / f"rank{at}_ascend_pt"
        runs[release] = profile(run / "ASCEND_PROFILER_OUTPUT", [10.0], start=100 * at).parents[1]
        if release:
            (run / "profiler_info_0.json").write_text(json.dumps({"cann_version": release}))
    assert [pooling([runs[one]], version).cann for one in ("8.5.RC1", "", "8.5", "9.1.0")] == [
        *((), (), (), ("8.5.RC1", "8.5", "9.1.0"))
    ]
    two = [runs["8.5"], runs["9.1.0"]]
    assert parse_profile(two, tmp_path / "other").cann == ("8.5", "9.1.0")
    assert parse_profile(two[:1], tmp_path / "one").cann == ()
