"""The launches before the cases of a profile, from the order of its rows."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.model.record import MOST_BEFORE
from collector.profiles.kernel_details import read_profile
from tests.unit.collector.naming import naming

HEADER = (
    "Device_id,Type,Accelerator Core,Start Time(us),Duration(us),Input Shapes,Input Data Types,"
    "Input Formats,Output Shapes,Output Data Types,Output Formats"
)


def row(kernel: str, start: object, device: int = 0) -> str:
    core = "COMMUNICATION" if kernel.startswith("hcom") else "AI_VECTOR_CORE"
    return f'{device},{kernel},{core},{start},1.5,"4,4",FLOAT,ND,"4,4",FLOAT,ND'


def write(folder: Path, *rows: str, name: str = "kernel_details.csv") -> Path:
    (folder / name).write_text("\n".join((HEADER, *rows)) + "\n")
    return folder


def before(folder: Path) -> dict[str, str]:
    """Return the launches before each kernel of a folder, by name."""
    found = read_profile([folder], with_contexts=True).records
    return {r.kernel_type: " ".join(one.kernel_type for one in r.before) for r in found}


def test_order_is_that_of_the_device_and_not_of_the_file(tmp_path):
    rows = [row("Relu", "1764246877000003.25"), row("Abs", "1764246877000001"), row("Neg", "\t2")]
    assert before(write(tmp_path, *rows)) == {"Neg": "", "Abs": "Neg", "Relu": "Neg Abs"}


def test_most_frequent_predecessors_of_a_case_are_traced_back(tmp_path):
    run = ["Exp", "Relu", "Abs", "Neg", "Relu", "Abs", "Neg", "Relu"]
    found = before(write(tmp_path, *(row(name, at) for at, name in enumerate(run))))
    assert found["Relu"] == "Exp Relu Abs Neg Relu Abs Neg"
    assert found["Neg"] == "Exp Relu Abs Neg Relu Abs"
    assert found["Exp"] == ""


def test_rare_predecessor_is_not_used(tmp_path):
    run = ["Abs", "Exp", "Relu", "Neg", "Relu", "Neg", "Relu", "Exp", "Relu"]
    found = before(write(tmp_path, *(row(name, at) for at, name in enumerate(run))))
    # Neg and Exp occur twice before Relu, Exp the last time.
    assert found["Relu"].endswith("Neg Relu Exp")


def test_devices_and_files_are_separate_runs(tmp_path):
    write(tmp_path, row("Abs", 1, device=0), row("Relu", 2, device=1), row("Neg", 3, device=0))
    write(tmp_path, row("Exp", 2.5), name="kernel_details_2.csv")
    assert before(tmp_path) == {"Abs": "", "Relu": "", "Neg": "Abs", "Exp": ""}


def test_communication_is_ignored(tmp_path):
    write(tmp_path, row("Abs", 1), row("hcom_allReduce_", 2), row("Neg", 3))
    assert before(tmp_path) == {"Abs": "", "Neg": "Abs"}


def test_predecessors_beyond_the_replay_limit_are_dropped(tmp_path):
    write(tmp_path, *(row("Abs", at) for at in range(MOST_BEFORE + 5)), row("Neg", 999))
    assert len(before(tmp_path)["Neg"].split()) == MOST_BEFORE


@pytest.mark.parametrize("start", ["N/A", ""])
def test_rows_without_a_start_have_no_order(tmp_path, start):
    write(tmp_path, row("Abs", 1), row("Neg", start))
    assert len(read_profile([tmp_path]).records) == 2
    with pytest.raises(BadInput, match=naming("'Start Time(us)'")):
        read_profile([tmp_path], with_contexts=True)


@given(st.lists(st.sampled_from(["Abs", "Neg", "Exp"]), min_size=1, max_size=12), st.randoms())
@settings(max_examples=40, deadline=None)
def test_predecessors_of_a_case_occurred_in_the_run(tmp_path_factory, run, chance):
    folder = tmp_path_factory.mktemp("run")
    rows = [row(name, at) for at, name in enumerate(run)]
    for name, reported in before(write(folder, *rows)).items():
        places = [at for at, one in enumerate(run) if one == name]
        stood = [" ".join(run[:at]) for at in places]
        assert any(
            reported == text or text.endswith(" " + reported) or reported == "" for text in stood
        )
        assert reported or places == [0]
    chance.shuffle(rows)
    assert before(write(folder, *rows)) == before(write(folder, *sorted(rows)))
