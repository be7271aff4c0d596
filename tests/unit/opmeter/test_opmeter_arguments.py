"""Arguments of any type and size are answered or refused in one line, and versions are pickled."""

import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import opmeter
from collector.codec.errors import BadInput, OpmeterError
from collector.store import open_store
from opmeter.version import Version
from tests.unit.opmeter.made import PATH, Row, merged, product, version_of

pytestmark = pytest.mark.fast

_LENGTHS = {"Runtime actual_seq_lengths_kv_values": "4,5"}
_GIVEN: dict[str, Any] = {
    "kernel": "MatMulV2",
    "inputs": [(16, 512), (512, 64)],
    "dtype": "bf16",
}
_WRONG = [
    *(None, True, -1, 2**63, 10**400, 1.5, float("nan"), 1j, b"bf16", object(), "a\0b", "\ud800"),
    *([[[]]], {1: 2}, {"a"}, [None, 3], [b"x"], [True], [(True, 4)], [(-1, 4)], [(2**63, 4)]),
    *([(4.0, 8.0)], ["4,8"], [np.float64(3)], np.array([[4.0]]), np.int8(3), np.bool_(True)),
    *(pd.NA, pd.Series([1, 2]), pd.DataFrame({"a": [1]}), iter([(16, 512)]), Path("/x"), slice(1)),
]


@pytest.fixture(scope="module")
def version() -> Version:
    attention = Row("Attn", [(2, 8)], [(2, 8)], 5.0, extra=_LENGTHS)
    return version_of([product(m, 64, 512, 10.0 + m) for m in (16, 32, 64, 128)] + [attention])


def refused(call: Callable[..., object], name: str, given: dict[str, Any]) -> int:
    """Return how many wrong values of an argument are refused; others are answered."""
    count = 0
    for wrong in _WRONG:
        try:
            call(**{**given, name: wrong})
        except OpmeterError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000
            count += 1
    return count


@pytest.mark.parametrize(
    ("name", "answered"),
    [
        ("kernel", 0),
        ("inputs", 0),
        ("dtype", 1),  # ["4,8"]
        ("formats", 1),
        ("op_state", 1),  # None
        ("settings", 1),
        ("lengths", 3),  # and [3.0], and numbers of pandas
        ("outputs", 1),
        ("extrapolate", 2),  # True, as Python and numpy have it
        ("unambiguous", 2),
    ],
)
def test_wrong_arguments_are_refused(version: Version, name: str, answered: int) -> None:
    for call in (version.query, version.explain):
        assert refused(call, name, _GIVEN) == len(_WRONG) - answered, call


def test_wrong_arguments_of_other_methods_are_refused(version: Version, tmp_path: Path) -> None:
    def recorded(weight: Any) -> None:
        with version.recording_misses(tmp_path / "misses") as log:
            version.query("Absent", [(1,)], weight=weight)
        assert len(log) == 1

    assert refused(recorded, "weight", {}) == len(_WRONG) - 2  # 1.5 and 3
    assert refused(version.missed, "reason", _GIVEN) == len(_WRONG)
    for call in (version.contents, version.arrow):
        assert refused(call, "kernel", {}) == len(_WRONG)
    assert refused(version.blocks, "kernel", {}) == len(_WRONG)
    assert refused(version.case, "case", {}) == len(_WRONG)
    assert refused(version.frame, "min_quality", {"kernel": "MatMulV2"}) == len(_WRONG)
    assert refused(version.frame, "m", {"kernel": "MatMulV2"}) >= len(_WRONG) - 2
    assert refused(version.query_many, "frame", {}) == len(_WRONG)


@pytest.mark.parametrize(
    "name", ["kernel_type", "Input Shapes", "Input Data Types", "weight", "EP Size", "OP State"]
)
def test_wrong_cells_and_columns_of_tables_are_refused(version: Version, name: str) -> None:
    table = {"kernel_type": ["MatMulV2"] * 2, "Input Shapes": ["16,512;512,64"] * 2}
    first = "Add" if name == "kernel_type" else ""
    for wrong in _WRONG:
        for column in (wrong, [first, wrong], [first] * 3):
            try:
                version.query_many({**table, name: column})
            except OpmeterError as error:
                assert name in str(error) or "rows as kernel_type" in str(error)
    with pytest.raises(BadInput, match="once"):
        names = ["kernel_type", "kernel_type", "Input Shapes"]
        version.query_many(pd.DataFrame([["A", "A", "1"]], columns=names))


def test_sizes_of_any_integer_type_are_answered(version: Version) -> None:
    expected = version.query(**_GIVEN)
    for inputs in (np.array([[16, 512], [512, 64]]), [[16, 512], np.array([512, 64], np.int16)]):
        assert version.query("MatMulV2", inputs, np.str_("bf16")) == expected  # type: ignore[arg-type]
    long = dict.fromkeys(_LENGTHS, [1e308] * 5)
    assert version.explain("Attn", [(2, 9)], lengths=long).answer.reason is not None


def _answered(version: Version) -> opmeter.Answer:
    return version.query(**_GIVEN)


def test_versions_are_pickled_and_answer_in_other_processes(tmp_path: Path) -> None:
    merged([product(16, 64, 512, 10.0)], open_store(str(tmp_path)))
    db = opmeter.open(tmp_path)
    version = db.directory(PATH)
    expected = version.query(**_GIVEN)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(_answered, version).result() == expected
    assert pickle.loads(pickle.dumps(db)).directory(PATH).query(**_GIVEN) == expected
    reused = pickle.loads(pickle.dumps(db.directory(PATH, reused=True)))
    assert reused.query(**_GIVEN) == expected
    store = open_store("s3://bucket/p?endpoint=http://127.0.0.1:9")
    assert pickle.loads(pickle.dumps(store)).url == store.url


def test_wrong_arguments_of_databases_are_refused(tmp_path: Path) -> None:
    merged([product(16, 64, 512, 10.0)], open_store(str(tmp_path)))
    db = opmeter.open(tmp_path)
    device = PATH.partition("/")[0]
    for call, given, names in (
        (opmeter.open, {"address": tmp_path}, ("address", "number", "channel")),
        (
            db.directory_of,
            {"device": device},
            ("device", "vllm", "torch", "cann", "nearest", "reused"),
        ),
        (db.directory, {"path": PATH}, ("path", "reused")),
    ):
        for name in names:
            assert refused(call, name, given) >= len(_WRONG) - 2, name
    with pytest.raises(OpmeterError):
        opmeter.open("x" * 300)
