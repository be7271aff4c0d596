"""Which releases accept the calls of the catalogue: from the schemas of their wheels."""

from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from collector.ops.registry import all_ops, find_operator
from collector.ops.releases import (
    ABSENT,
    BOUND,
    BOUND_OTHERWISE,
    ROWS_OF_950,
    SCHEMA_UNKNOWN,
    kinds_of_rows,
    known_releases,
    release_status,
    why_unsupported,
)
from collector.ops.spec import accepts, library_of
from collector.ranks.distribution import DISTRIBUTE_KERNELS
from jobs.cli.app import app
from tests.fixtures.row_checks import failing
from tools.operators.releases.binding import Passed, misfit, parse_schema
from tools.operators.releases.matrix import releases_table, schemas_of
from tools.operators.releases.wheels import (
    FOLDER,
    RELEASES,
    calls_of_torch_npu,
    schemas_in,
    schemas_of_sources,
    schemas_of_texts,
)

pytestmark = pytest.mark.fast

TORCH_NPU = [r.replace("==", "-") for r in RELEASES if r.startswith("torch_npu")]


@pytest.mark.thorough
def test_matrix_equals_the_one_of_the_wheels():
    held = (files("collector") / "data" / "releases.csv").read_bytes()
    assert held == releases_table(), "python -m tools releases writes it"


def test_every_library_call_has_a_status_for_each_release():
    def check(kernel):
        op = find_operator(kernel)
        if op.library == "torch" or kernel in DISTRIBUTE_KERNELS:
            assert release_status(kernel) == {}
            return
        calls = filter(None, (op.call, op.npu.served))
        mine = tuple(library_of(call).replace("-", "_") for call in calls)
        assert set(release_status(kernel)) == {r for r in known_releases() if r.startswith(mine)}

    assert failing([op.kernel for op in all_ops()], check) == []


def test_each_list_of_schemas_names_its_wheel_and_the_wheel_s_hash():
    def check(release):
        wheel, sha256 = (FOLDER / f"{release}.txt").read_text().splitlines()[:2]
        assert wheel.startswith(f"# {release}-cp311-") and wheel.endswith(".whl")
        assert len(sha256.removeprefix("# sha256 ")) == 64

    assert failing(known_releases(), check) == []


def test_release_of_the_recording_tier_accepts_every_call_but_one_without_a_schema():
    words = {
        (op.kernel, rows): release_status(op.kernel, rows).get("torch_npu-2.13.0", BOUND)
        for op in all_ops()
        for rows in ("", ROWS_OF_950)
    }
    unbound = {kernel: word for (kernel, _), word in words.items() if word != BOUND}
    assert unbound == {"ReshapeAndCacheNdKernel": SCHEMA_UNKNOWN}


@pytest.mark.parametrize("kernel", ["QuantBatchMatmulV3", "QuantBatchMatmulV4", "GroupedMatmul"])
def test_release_may_accept_the_rows_of_a2_and_refuse_those_of_ascend_950(kernel):
    assert why_unsupported(kernel, "torch_npu-2.9.0") == ""
    refused = why_unsupported(kernel, "torch_npu-2.9.0", ROWS_OF_950)
    known = ("torch_npu 2.9.0", "scale_dtype", "2.10.0.post2")
    assert [word for word in known if word not in refused] == []
    assert why_unsupported(kernel, "torch_npu-2.13.0", ROWS_OF_950) == ""


def test_kernel_whose_rows_are_all_of_one_kind_has_one_answer():
    assert kinds_of_rows("SwigluMxQuant") == kinds_of_rows("SwiGlu") == ("",)
    assert kinds_of_rows("GroupedMatmul") == ("", ROWS_OF_950)
    assert release_status("SwigluMxQuant", ROWS_OF_950) == release_status("SwigluMxQuant")


@pytest.mark.parametrize(
    ("kernel", "answers"),
    [
        ("ScatterPaKvCache", ["cache_mode"] * 3 + [BOUND] * 5),
        ("MoeFinalizeRoutingV2", [BOUND_OTHERWISE] * 6 + [BOUND] * 2),
        ("InplaceAddRmsNorm", [ABSENT] * 3 + [BOUND] * 5),
        ("SparseFlashAttention", [ABSENT] * 2 + [BOUND] * 6),
        ("LightningIndexer", [ABSENT] * 2 + [BOUND] * 6),
    ],
)
def test_known_changes_between_releases_are_in_the_matrix(kernel, answers):
    found = [release_status(kernel)[release] for release in TORCH_NPU]
    found = ["cache_mode" if "cache_mode" in answer else answer for answer in found]
    assert found == answers


def test_release_without_a_call_is_reported_with_those_that_have_it():
    absent = why_unsupported("SparseFlashAttention", "torch_npu-2.8.0")
    taking = ("2.9.0", "2.10.0.post4", "2.13.0", "2.14.0")
    assert [word for word in ("torch_npu 2.8.0", *taking) if word not in absent] == []
    assert "2.7.1" not in absent
    otherwise = why_unsupported("ScatterPaKvCache", "torch_npu-2.9.0")
    known = ("torch_npu 2.9.0", "cache_mode", "2.13.0")
    assert [word for word in known if word not in otherwise] == []


@pytest.mark.parametrize(
    ("kernel", "release"),
    [
        ("ScatterPaKvCache", "torch_npu-2.10.0.post4"),  # accepts it
        ("MoeFinalizeRoutingV2", "torch_npu-2.9.0"),  # accepts it in another form, which is passed
        ("ScatterPaKvCache", "torch_npu-2.9.0.post9"),  # not recorded
        ("Add", "torch-2.9.0"),
        ("NoSuchKernel", "torch_npu-2.9.0"),
        ("SparseFlashAttention", ""),
    ],
)
def test_supported_and_unknown_releases_are_not_refused(kernel, release):
    assert why_unsupported(kernel, release) == ""


@pytest.mark.thorough
def test_ops_command_shows_the_matrix_and_the_row_of_a_kernel():
    message = CliRunner().invoke(app, ["ops", "--releases"]).output
    lines = message.splitlines()
    assert lines[0].split("\t")[3:] == list(known_releases())
    assert len(lines) == 1 + sum(len(kinds_of_rows(op.kernel)) for op in all_ops())
    message = CliRunner().invoke(app, ["ops", "GroupedMatmul"]).output
    assert any("2.9.0" in line and ROWS_OF_950 in line for line in message.splitlines())
    message = CliRunner().invoke(app, ["ops", "InplaceAddRmsNorm"]).output
    assert any("torch_npu-2.9.0" in line and ABSENT in line for line in message.splitlines())


SCHEMA = "npu_x.out(Tensor(a!) a, Tensor? b, *, str mode='PA,NZ (x)', int[2] k=[0, 1]) -> (Tensor)"


def test_a_schema_is_read_with_brackets_quotes_and_overloads():
    schema = parse_schema(SCHEMA)
    reported = [(p.name, p.is_optional, p.has_default, p.by_name_only) for p in schema.parameters]
    assert schema.name == "npu_x"
    assert reported == [
        ("a", False, False, False),
        ("b", True, False, False),
        ("mode", False, True, True),
        ("k", False, True, True),
    ]


@pytest.mark.parametrize("text", ["", "npu_x", "npu_x(Tensor a", "npu_x(Tensor a)", "x(1+) -> T"])
def test_malformed_schema_is_refused_in_one_line(text):
    with pytest.raises(ValueError) as error:
        parse_schema(text)
    assert repr(text) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("by_place", "by_name", "words"),
    [
        ((False, True), (), ""),
        ((False,), (("b", False),), ""),
        ((False, False), (("k", False),), ""),
        ((False, False, False), (), "3 & 2"),
        ((False, False), (("cache_mode", False),), "cache_mode"),
        ((False,), (), "b"),
        ((True, False), (), "a & None"),
        ((False, False), (("b", False),), "b & twice"),
    ],
)
def test_call_fits_its_schema_or_has_a_reason(by_place, by_name, words):
    fault = misfit(Passed(by_place, by_name), [parse_schema(SCHEMA)])
    assert bool(fault) == bool(words)
    assert [word for word in words.split(" & ") if word not in fault] == []


def test_one_fitting_overload_suffices_and_an_elided_one_accepts_all():
    two = Passed((False, False), ())
    assert misfit(two, [parse_schema("x(Tensor a) -> T"), parse_schema(SCHEMA)]) == ""
    assert misfit(two, [parse_schema("x(...) -> Any")]) == ""


@pytest.mark.thorough
@given(st.text("npu_x(),*?=-> Tensor'\"[]!.", max_size=60))
def test_any_text_is_a_schema_or_refused(text):
    try:
        schema = parse_schema(text)
    except ValueError:
        return
    assert schema.name


def test_schemas_are_found_in_the_bytes_of_a_library():
    data = b"\x7fELF\x00npu_x(Tensor a) -> Tensor\x00npu_y(Tensor a) -> Tensor\x00npu_x(Ten"
    data += b"\x00npu_x.out(Tensor a, Tensor(a!) o) -> (Tensor(load(Tens\x00"
    assert schemas_in(data, {"npu_x"}) == {"npu_x(Tensor a) -> Tensor"}


def test_operators_that_python_registers_are_read_from_its_source():
    source = (
        "def impl(x: Tensor, y: Tensor | None = None, *, s: float): ...\n"
        'direct_register_custom_op(\n    op_name="scaled",\n    op_func=impl,\n)\n'
    )
    found = schemas_of_sources([source], {"scaled"})
    assert found == {"scaled(Any x, Any? y=None, *, Any s) -> Any"}


def test_keyword_that_a_function_reads_from_its_kwargs_is_an_argument():
    source = 'def impl(x, **others):\n    return x + others.get("y", 0)\n'
    assert schemas_of_sources([source], {"impl"}) == {"impl(Any? x, *, Any? y=None) -> Any"}


def test_operators_of_atb_are_read_from_pages_and_lists():
    page = "torch_npu.atb.load(key, *, starts=None) -> (Tensor, Tensor)\n"
    assert schemas_of_texts(page, {"load"}) == {"load(Any key, *, Any? starts=None) -> Any"}
    assert schemas_of_texts("ALL = [\n    'load',\n]\n", {"load"}) == {"load(...) -> Any"}


def test_function_with_a_schema_accepts_its_arguments_and_others_accept_all():
    class Names:
        def __init__(self, *names):
            self.arguments = [type("Argument", (), {"name": name}) for name in names]

    class Operator:
        first = type("Overload", (), {"_schema": Names("x", "k")})

        def overloads(self):
            return ["first"]

    assert accepts(Operator(), "k") and not accepts(Operator(), "cache_mode")
    assert accepts(print, "anything")


def test_calls_of_torch_npu_are_read_from_sources():
    source = (
        "import torch_npu\n# torch_npu.npu_c(x)\ntorch_npu.npu_a.out(x)\ny = torch.ops.npu.npu_b(x)"
    )
    assert calls_of_torch_npu(source) == {"npu_a", "npu_b"}


def test_schema_file_has_no_duplicates():
    for release in known_releases():
        for schemas in schemas_of(release).values():
            assert len(set(schemas)) == len(schemas)
