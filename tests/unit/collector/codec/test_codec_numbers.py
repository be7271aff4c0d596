"""Numbers in texts are read strictly: further spellings that Python's own readers accept are
damage."""

import pytest

from collector.codec.errors import BadInput
from collector.codec.numbers import decimal_text, integer_of, parse_number
from collector.database.tree import read_kernel_file
from collector.model.case import parse_shape
from collector.profiles.kernel_details import read_profile

pytestmark = pytest.mark.fast

NO_NUMBERS = ("1_000", "+4", "٣", "²", "1 000", "nan", "inf", "1e", "0x4", "--4", "")


def test_only_plain_numbers_are_read():
    assert [integer_of(text) for text in ("0", " 12\t", "-7")] == [0, 12, -7]
    assert [parse_number(text) for text in ("0", "1.5 ", "-2.", ".5", "1e-3")] == [
        *(0, 1.5, -2.0, 0.5, 0.001)
    ]
    for text in (*NO_NUMBERS, "-0", "04", "4.0"):
        with pytest.raises(ValueError):
            integer_of(text)
    for text in (*NO_NUMBERS, "1e999"):
        with pytest.raises(ValueError):
            parse_number(text)


def test_small_measured_numbers_keep_their_digits():
    """A message of 8 bytes in 30 ms has a bandwidth that two decimals would round to 0.00."""
    texts = {
        0.0: "0.00",
        110.0: "110.00",
        1.005e6: "1005000.00",
        0.0372: "0.0372",
        8 / 30_000 / 1e3: "0.000000267",
        0.9999: "1.000",
        -0.0041: "-0.00410",
    }
    assert {value: decimal_text(value) for value in texts} == texts
    for value, text in texts.items():
        assert parse_number(text) == pytest.approx(value, rel=5e-3)


def test_malformed_shape_is_refused():
    shapes = {"4096,1": (4096, 1), "(4096, 1)": (4096, 1), "(8,)": (8,), "0": (0,), "": None}
    assert {text: parse_shape(text) for text in shapes} == shapes
    others = ("4 096,1", "4096 1", "4096,,1", "4096,", ",1", "(4096,1", "4,-0", "1.0")
    for text in (*NO_NUMBERS[:-1], *others):
        with pytest.raises(BadInput):
            parse_shape(text)


def test_nonnumeric_duration_of_a_tree_is_refused_with_its_line(tmp_path):
    path = tmp_path / "Add.csv"
    header = "Input Shapes,Input Data Types,Input Formats,Average Duration(us)\n"
    for text in (*NO_NUMBERS[:-1], "soon"):
        if text == "nan":  # pandas writes it for an empty cell
            continue
        path.write_text(f'{header}"8","FLOAT","ND",2.5\n"9","FLOAT","ND",{text}\n')
        with pytest.raises(BadInput) as error:
            read_kernel_file(path)
        assert (error.value.path, error.value.line) == (path, 3), text


def test_a_header_that_ends_in_cr_hides_no_row(tmp_path):
    path = tmp_path / "op_summary_1.csv"
    header = (
        "OP Type,OP State,Task Type,Task Duration(us),Input Shapes,Input Data Types,Input Formats,"
        "Output Shapes,Output Data Types,Output Formats"
    )
    row = 'Add,dynamic,AI_VECTOR_CORE,{},"8,8;8,8",FLOAT;FLOAT,ND;ND,"8,8",FLOAT,ND'
    for ends in (("\r", "\n", "\n"), ("\r", "\r", "\r"), ("\r\n", "\r", "\n"), ("\n", "\r\n", "")):
        lines = (header, row.format(100), row.format(2))
        path.write_bytes("".join(map(str.__add__, lines, ends)).encode())
        (record,) = read_profile([path]).records
        assert (record.profile.count, record.profile.mean_us) == (2, 51.0), ends
