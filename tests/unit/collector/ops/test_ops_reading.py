"""One call is one case, whatever its source prints: profiles of several releases, recordings,
tables of other tools and callers."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from collector.model.case import case_from_cells
from collector.model.record import CaseRecord
from collector.model.vocabulary import INPUT_CELLS, OUTPUT_CELLS, is_absent_dtype
from collector.ops.registry import all_ops, find_operator
from collector.ops.spec import as_printed
from tests.fixtures.op_rows import rows_alone
from tests.fixtures.row_checks import failing
from tests.unit.opmeter.made import recorded, version_of

pytestmark = pytest.mark.fast

BF16 = "DT_BF16"


def cells(inputs: str, dtypes: str, formats: str, output: str, **more: str) -> Mapping[str, str]:
    sides = (inputs, dtypes, formats, output, BF16, "ND")
    named = dict(zip((*INPUT_CELLS, *OUTPUT_CELLS), sides, strict=True))
    return {**named, **{f"Runtime {name}": text for name, text in more.items()}}


ATTENTION = "16,16,128;{pages},128,256;{pages},128,256;;2048,2048;16;16;;;;;;;;16,{width}"
ATTENTION_DTYPES = f"{BF16};{BF16};{BF16};;INT8;INT64;INT64;;;;;;;;INT32"
LENGTHS = {"actual_seq_lengths_kv_values": ",".join(["4096"] * 16), "input_layout": "TND"}


def attention(pages: int, width: int, lse: str = "", **more: str) -> Mapping[str, str]:
    inputs = ATTENTION.format(pages=pages, width=width)
    row = cells(inputs, ATTENTION_DTYPES, "ND", "16,16,128", **LENGTHS, **more)
    if not lse:
        return row
    sides = (f"16,16,128;{lse}", f"{BF16};{BF16}", "ND;ND")
    return {**row, **dict(zip(OUTPUT_CELLS, sides, strict=True))}


# Rows of one call each. Those of QuantBatchMatmulV3 without empty slots are of profiles of
# DeepSeek-V3 on A3 (CANN 8.5) and 910B; those with them are of the runtime that records.
SPELLINGS = {
    "QuantBatchMatmulV3, a bias": (
        "QuantBatchMatmulV3",
        cells(
            "1,7168;66,448,16,32;2112;2112",
            "INT8;INT8;FLOAT;INT32",
            "ND;FRACTAL_NZ;ND;ND",
            "1,2112",
        ),
        cells(
            *("1,7168;66,448,16,32;2112;;2112;", "INT8;INT8;FLOAT;;INT32;"),
            *("ND;FRACTAL_NZ;ND;;ND;", '"1,2112"'),
        ),
        cells(
            *('"1,7168;66,448,16,32;2112;;2112"', "INT8;INT8;FLOAT;DT_UNDEFINED;INT32"),
            *("NCL;FRACTAL_NZ;ND;NULL;ND", "1,2112"),
        ),
    ),
    "QuantBatchMatmulV3, a scale of each token": (
        "QuantBatchMatmulV3",
        cells("9,6144;32,384,16,32;1024;9", "INT8;INT8;FLOAT;FLOAT", "ND;FRACTAL_NZ", "9,1024"),
        cells("9,6144;32,384,16,32;1024;;;9", "INT8;INT8;FLOAT;;;FLOAT", "ND;FRACTAL_NZ", "9,1024"),
    ),
    "TransposeBatchMatMul": (
        "TransposeBatchMatMul",
        cells("16,16,512;16,512,128", f"{BF16};{BF16}", "ND;ND", "16,16,128"),
        cells("16,16,512;16,512,128", f"{BF16};{BF16}", "NCL;NCL", "16,16,128"),
        cells("(16,16,512);(16,512,128)", "bf16;bf16", "FORMAT_ND;nd", "16,16,128"),
    ),
    "FusedInferAttentionScore": (
        "FusedInferAttentionScore",
        attention(512, 32),
        attention(512, 32, lse="1"),  # a placeholder, as graphs pass it
        attention(9000, 256),
        attention(512, 32, attn_state="DecodeOnly", block_table_valid_blocks="32,32"),
    ),
    "ReshapeAndCacheNdKernel": (
        "ReshapeAndCacheNdKernel",
        *(
            cells(
                f"16,1,128;16,1,128;{pages},128,1,128;{pages},128,1,128;16",
                f"{BF16};{BF16};{BF16};{BF16};INT32",
                "ND;ND;ND;ND;ND",
                f"{pages},128,1,128;{pages},128,1,128",
            )
            for pages in (512, 77)
        ),
    ),
    "GroupedMatmulSwigluQuant of an older release": (
        "GroupedMatmulSwigluQuant",
        cells("64,128;8,128,256;8,256;64;8", "INT8;INT8;FLOAT;FLOAT;INT64", "ND", "64,128"),
        cells("64,128;8,128,256;8,256;64;;8", "INT8;INT8;FLOAT;FLOAT;;INT64", "ND", "64,128"),
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_of_a_call_are_one_case(name: str) -> None:
    kernel, first, *others = SPELLINGS[name]
    assert {case_from_cells(kernel, row).case_id for row in others} == {
        case_from_cells(kernel, first).case_id
    }


def test_what_changes_the_kernel_distinguishes_cases() -> None:
    kernel, first, *_ = SPELLINGS["QuantBatchMatmulV3, a bias"]
    of_tokens = cells(
        "1,7168;66,448,16,32;2112;;;2112", "INT8;INT8;FLOAT;;;FLOAT", "ND;FRACTAL_NZ", "1,2112"
    )
    blocks = {**first, INPUT_CELLS[2]: "ND;ND;ND;ND"}
    ids = {case_from_cells(kernel, row).case_id for row in (first, of_tokens, blocks)}
    assert len(ids) == 3
    unknown = attention(512, 32)
    del unknown["Runtime actual_seq_lengths_kv_values"]  # type: ignore[attr-defined]
    wide = {**unknown, INPUT_CELLS[0]: ATTENTION.format(pages=512, width=64)}
    given = attention(512, 32, lse="16,16,1")
    given = {**given, OUTPUT_CELLS[1]: f"{BF16};FLOAT"}
    rows = (attention(512, 32), unknown, wide, given)
    assert len({case_from_cells("FusedInferAttentionScore", row).case_id for row in rows}) == 4


def test_kernel_without_a_declaration_is_read_by_position() -> None:
    plain, named = (cells("8,64", BF16, layout, "8,64") for layout in ("ND", "NCHW"))
    ids = {case_from_cells("made_up_kernel", row).case_id for row in (plain, named)}
    assert find_operator("made_up_kernel") is None and len(ids) == 2


def spelled(record: CaseRecord) -> Iterator[CaseRecord]:
    """Yield the record as other sources print it."""
    shapes, dtypes, formats = (record.cells[name].strip('"').split(";") for name in INPUT_CELLS)
    width = len(shapes)
    named = [
        "NCHW" if layout == "ND" and shape.count(",") == 3 else layout
        for shape, layout in zip(shapes, formats, strict=False)
    ]
    yield with_inputs(record, shapes, dtypes, named)
    op = find_operator(record.kernel_type)
    assert op is not None
    further = [""] * (len(op.slots) - width)
    yield with_inputs(record, [*shapes, *further], [*dtypes, *further], [*formats, *further])
    lower = [dtype.lower() for dtype in dtypes]
    yield with_inputs(record, [f"({shape})" if shape else "" for shape in shapes], lower, formats)
    if op.placed is not as_printed:
        here = [at for at in range(width) if shapes[at] or not is_absent_dtype(dtypes[at])]
        kept = [[cell[at] for at in here if at < len(cell)] for cell in (shapes, dtypes, formats)]
        without = with_inputs(record, *kept)
        if op.rejection_reason(without.case, "npu") == "":  # else several slots fit its tensors
            yield without


def with_inputs(
    record: CaseRecord, shapes: list[str], dtypes: list[str], formats: list[str]
) -> CaseRecord:
    texts = (f'"{";".join(shapes)}"', ";".join(dtypes), ";".join(formats))
    return replace(record, cells={**record.cells, **dict(zip(INPUT_CELLS, texts, strict=True))})


def test_every_declared_kernel_has_one_case_in_all_spellings_and_queries_find_it() -> None:
    """Of the rows of all operators: in each spelling they have one id, and a version that measured
    one spelling answers the others."""
    records = {
        record.case_id: record
        for op in all_ops()
        for record in rows_alone(op.kernel)[:4]
        if record.case.inputs and op.rejection_reason(record.case, "npu") == ""
    }
    version = version_of(
        [recorded(one, 1.0 + number) for number, one in enumerate(records.values())]
    )

    def check(record: CaseRecord) -> None:
        expected = version.query_record(record)
        assert expected.channel == "measured"  # of a row with more settings, where it is open
        for other in spelled(record):
            assert other.case_id == record.case_id, other.cells
            assert version.query_record(other).value_us == expected.value_us, other.cells

    assert len({record.kernel_type for record in records.values()}) > 250
    assert failing(list(records.values()), check, lambda one: one.case.describe()) == []
