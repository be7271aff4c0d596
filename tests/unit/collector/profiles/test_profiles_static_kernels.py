"""The files in which CANN describes operators to compile for their shapes are cases."""

import json
from pathlib import Path
from typing import Any

import pytest

from collector.codec.errors import BadInput
from collector.profiles.static_kernels import OUTPUTS, read_static_kernels
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import campaign_from_text
from jobs.executor import local_campaign
from jobs.planning.sources import load_sources
from tests.unit.jobs.cli.in_process import invoked
from tests.unit.jobs.plans import COMPLETE_TARGET

pytestmark = pytest.mark.fast


def tensor(dtype: str, shape: list[int], layout: str = "ND", **more: Any) -> dict[str, Any]:
    """A tensor with all members that nnopbase writes."""
    facts = {"name": "x", "index": 0, "param_type": "required", "value_depend": False}
    origin = {"origin_shape": shape, "origin_format": "ND"}
    return {**facts, **origin, "dtype": dtype, "shape": shape, "format": layout, **more}


def operator(kernel: str, inputs: list[Any], outputs: list[Any], **more: Any) -> dict[str, Any]:
    attrs = [{"name": "transpose_x1", "dtype": "bool", "index": 0, "value": False}]
    rest = {"tune_mode": "all", "attrs": attrs, "impl_mode": 0, "deterministic": "false"}
    return {"op_type": kernel, "inputs": inputs, "outputs": outputs, **rest, **more}


# As CANN passes it: a weight in its storage shape, and no bias or offset.
PRODUCT = operator(
    "MatMulV2",
    [tensor("bf16", [16, 2048]), tensor("bf16", [64, 128, 16, 16], "FRACTAL_NZ"), None, None],
    [tensor("bf16", [16, 1024])],
)
JOINED = operator(
    "ConcatD",
    [[tensor("float", [4, 8]), tensor("float", [2, 8])]],
    [tensor("float", [6, 8])],
)
SCALED = operator("Muls", [tensor("int32", [])], [tensor("int32", [])])


def write(folder: Path, name: str, *operators: Any, run: str = "20260801_4711_outputs") -> Path:
    place = folder / OUTPUTS / run / name
    place.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(operators):
        (place / f"Op_{number}.json").write_text(json.dumps(one, indent=2))
    return place


def cases(folder: Path) -> list[tuple[str, str, str, str]]:
    return [
        (one.kernel_type, one.case.op_state, one.cells["Input Shapes"], one.cells["Input Formats"])
        for one in read_static_kernels(folder).records
    ]


PRODUCT_CELLS = ("16,2048;64,128,16,16;;", "ND;FRACTAL_NZ;NULL;NULL")


def test_compiled_operators_are_cases_in_both_states_and_others_dynamic(tmp_path: Path) -> None:
    write(tmp_path, "4711_opcompile", PRODUCT)
    write(tmp_path, "4711_debug", {**PRODUCT, "bin_type": 0, "bin_info": "m.o"}, JOINED, SCALED)
    assert cases(tmp_path) == [
        ("MatMulV2", "static", *PRODUCT_CELLS),
        ("MatMulV2", "dynamic", *PRODUCT_CELLS),
        ("ConcatD", "dynamic", "4,8;2,8", "ND;ND"),
        ("Muls", "dynamic", "", "ND"),
    ]
    found = read_static_kernels(tmp_path)
    assert (found.compiled, found.others) == (1, 2)
    product = found.records[0].case
    assert product.inputs is not None
    assert [slot.dtype for slot in product.inputs] == ["DT_BF16", "DT_BF16"]
    assert cases(tmp_path / OUTPUTS) == cases(tmp_path)


@pytest.mark.parametrize(
    ("folders", "compiled"),
    [
        ({"4711": [PRODUCT], "4711_debug": [PRODUCT, JOINED]}, 1),  # as CANN's documents show it
        ({"4711_debug": [PRODUCT, JOINED]}, 2),  # what torchair compiles then
        ({"4711": [PRODUCT], "4711_opcompile": [PRODUCT, JOINED]}, 2),
        ({"4711_opcompile": [PRODUCT], "4711_opcompile_gathered": [PRODUCT, SCALED]}, 2),
    ],
)
def test_the_compiled_files_are_those_that_torchair_chooses(
    tmp_path: Path, folders: dict[str, list[Any]], compiled: int
) -> None:
    for name, operators in folders.items():
        write(tmp_path, name, *operators)
    assert read_static_kernels(tmp_path).compiled == compiled


def test_operators_of_several_processes_are_cases_once(tmp_path: Path) -> None:
    write(tmp_path, "4711_opcompile", PRODUCT)
    write(tmp_path, "4712_opcompile", PRODUCT, JOINED, run="20260801_4712_outputs")
    found = read_static_kernels(tmp_path)
    assert (found.compiled, found.others, len(found.records)) == (2, 0, 4)


def test_campaign_accepts_the_folder_as_a_source(tmp_path: Path) -> None:
    write(tmp_path, "4711_opcompile", PRODUCT)
    text = "campaign: c\nsources: [{static_kernels: .}]\nbackend: cpu\n"
    (source,) = load_sources(campaign_from_text(text, path="c.yaml", base=tmp_path), MemoryStore())
    assert [one.case.op_state for one in source.records] == ["static", "dynamic"]
    assert source.planned.rows == 2


def test_a_plan_or_launch_of_static_kernels_names_what_they_require(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "4711_opcompile", PRODUCT)
    text = "campaign: c\nsources: [{static_kernels: .}]\nbackend: "
    Path("npu.yaml").write_text(f"{text}npu\ntarget: {COMPLETE_TARGET}\n")
    Path("cpu.yaml").write_text(f"{text}cpu\ntarget: {{device: CPU_x_2t, torch: 2.13.0}}\n")
    for problem in ("op_compiler: expected on PATH", ""):
        monkeypatch.setattr(local_campaign, "static_kernel_problem", lambda found=problem: found)
        planned = invoked("plan", "npu.yaml", "--dry-run", "--root", "data")
        assert planned.exit_code == 0, planned.output
        line = f"1 case of static kernels is not measured on this machine: {problem}\n"
        assert (line in planned.stderr) is bool(problem)
    image = f"here/worker@sha256:{'0' * 64}"
    words = ("--image", image, "--store", "s3://perf/x", "--root", "data", "--dry-run")
    for name, site in (("npu", "a2-800t"), ("cpu", "cpu")):
        launched = invoked("launch", f"{name}.yaml", *words, "--site", site)
        assert launched.exit_code == 0, launched.output
        assert ("1 case of static kernels" in launched.stderr) is (name == "npu")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"op_type": "../Mul"}, "op_type"),
        ({"op_type": None}, "op_type"),
        ({"inputs": {}}, "inputs"),
        ({"inputs": ["x"]}, "inputs[0].dtype"),
        ({"inputs": [tensor("float99", [1])]}, "inputs[0].dtype"),
        ({"inputs": [tensor("float", [1], "N;D")]}, "inputs[0].format"),
        ({"inputs": [None, tensor("float", [-1])]}, "inputs[1].shape"),
        ({"inputs": [tensor("float", [1.5])]}, "inputs[0].shape"),  # type: ignore[list-item]
        ({"inputs": [tensor("float", [1] * 99)]}, "inputs[0].shape"),
        ({"outputs": None}, "outputs"),
    ],
)
def test_file_that_is_not_an_operator_is_refused_with_its_field(
    tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    place = write(tmp_path, "4711_opcompile", {**PRODUCT, **change})
    with pytest.raises(BadInput) as error:
        read_static_kernels(tmp_path)
    assert error.value.path == place / "Op_0.json"
    assert f"{field}:" in str(error.value)


def test_damaged_files_empty_folders_and_links_are_not_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        read_static_kernels(tmp_path)
    outside = write(tmp_path / "outside", "4711_opcompile", PRODUCT)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "4711_opcompile").symlink_to(outside)
    with pytest.raises(BadInput):
        read_static_kernels(inside)
    (outside / "Op_1.json").write_text("{")
    with pytest.raises(BadInput):
        read_static_kernels(tmp_path / "outside")
