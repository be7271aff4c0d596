"""The rules of vLLM-Ascend's own operators agree with the definitions of its custom OPP."""

from dataclasses import replace

import pytest

from collector.ops.registry import find_operator
from tests.fixtures.op_rows import rows_of
from tests.fixtures.row_checks import failing
from tools.operators.releases.wheels import definitions_of

pytestmark = pytest.mark.fast

SPELLED = {
    "float16": "FLOAT16",
    "float32": "FLOAT",
    "bfloat16": "DT_BF16",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
    "int4": None,  # torch has no such dtype, and no row has it
}


def definitions(release):
    return definitions_of(f"vllm_ascend-{release}")


RELEASES = ("0.13.0", "0.18.0", "0.23.0")
DEFINED = [(release, kernel) for release in RELEASES for kernel in definitions(release)]


def columns(definition):
    """Return the combinations of dtypes: of the inputs, then of the outputs, in order."""
    slots = [*definition["input"], *definition["output"]]
    found = zip(*([SPELLED[d] for d in dtypes.split(",")] for _, dtypes, _ in slots), strict=True)
    return [column for column in found if None not in column]


def spelled(record, definition):
    """Return the dtypes of a row's slots, None for an omitted one, as many as in the definition."""
    case = record.case
    sides = (("input", case.inputs), ("output", case.outputs))
    found = []
    for side, slots in sides:
        reported = [s.dtype if s.shape is not None else None for s in slots]
        found += reported + [None] * (len(definition[side]) - len(reported))
    return found


def agrees(found, column):
    return all(one is None or one == other for one, other in zip(found, column, strict=True))


def with_dtypes(record, column, inputs):
    """Return the row with a combination's dtypes in the slots that it has."""
    cells = dict(record.cells)
    for name, dtypes in (("Input", column[:inputs]), ("Output", column[inputs:])):
        cell = f"{name} Data Types"
        old = cells[cell].split(";")
        pairs = zip(old, dtypes, strict=False)
        cells[cell] = ";".join(o if o == "DT_UNDEFINED" else new for o, new in pairs)
    return replace(record, cells=cells)


def test_rows_have_dtypes_of_a_definition():
    def check(record):
        known = [definitions(r)[kernel] for r, kernel in DEFINED if kernel == record.kernel_type]
        assert any(
            agrees(spelled(record, definition), column)
            for definition in known
            for column in columns(definition)
        )

    rows = [row for kernel in sorted({kernel for _, kernel in DEFINED}) for row in rows_of(kernel)]
    assert failing(rows, check, lambda row: row.case.describe()) == []


def test_every_dtype_combination_of_the_definition_fits_a_row():
    refused = []
    for release, kernel in DEFINED:
        definition, op = definitions(release)[kernel], find_operator(kernel)
        for column in columns(definition):
            inputs = len(definition["input"])
            changed = [with_dtypes(record, column, inputs) for record in rows_of(kernel)]
            reasons = [op.rejection_reason(record.case, "npu") for record in changed]
            if "" not in reasons:
                refused.append(f"{release} {kernel} {column}: {reasons}")
    assert refused == []


def test_number_and_optionality_of_slots_equal_the_definition():
    def check(release_and_kernel):
        release, kernel = release_and_kernel
        definition, op = definitions(release)[kernel], find_operator(kernel)
        assert len(op.slots) == len(definition["input"])
        required = {
            i for i, (_, _, reported) in enumerate(definition["input"]) if reported == "required"
        }
        assert required & op.optional == set()

    assert failing(DEFINED, check, " ".join) == []


def test_current_release_defines_six_custom_operators():
    ours = {"AddRmsNormBias", "ApplyTopKTopPCustom", "LightningIndexerVllm", "MoeInitRoutingCustom"}
    assert set(definitions("0.18.0")) == ours | {"LightningIndexerQuant", "CausalConv1d"}
