"""A tree of a fake runtime is not a source, and an unwritable tree is not measured."""

import threading

import pytest

from collector.codec.canonical import readable_json, sha256_hex
from collector.codec.errors import BadInput
from collector.database.pull import MARKER
from collector.model.plan import MeasureSettings
from collector.model.stack import Stack
from collector.singlehost.from_replay import microbench_by_replay
from collector.singlehost.version_files import read_tree
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

ROW = "Input Shapes,Input Data Types,Input Formats\n4,FLOAT,ND\n"


VERSION = "D/vllm_ascend/vllm0_torch2_cann0"
FILES = {f"{VERSION}/Abs.csv": sha256_hex(ROW.encode())}
MADE = {"commit": 1, "content_hash": "a" * 64, "files": FILES}


def tree(folder, **marker):
    version = folder / VERSION
    version.mkdir(parents=True)
    (version / "Abs.csv").write_text(ROW)
    (folder / MARKER).write_bytes(readable_json(marker))
    return version


def test_a_tree_pulled_from_a_fake_database_is_refused(tmp_path):
    version = tree(tmp_path, **MADE, runtime="fake")
    with pytest.raises(BadInput, match=naming(f"{version}:", "fake")):
        read_tree(version)


def test_other_pulled_trees_are_accepted(tmp_path):
    version = tree(tmp_path, **MADE, runtime="real")
    assert [record.kernel_type for record in read_tree(version).records] == ["Abs"]


def test_pulled_tree_without_a_runtime_is_refused(tmp_path):
    with pytest.raises(BadInput, match=naming(f"{tmp_path / MARKER}:", "runtime")):
        read_tree(tree(tmp_path, **MADE))


def test_unwritable_tree_is_refused_before_measuring(tmp_path, monkeypatch):
    version = tree(tmp_path, **MADE, runtime="real")
    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    stack = Stack(device="D", torch="2")
    with pytest.raises(BadInput, match=naming(f"{version}:", "Read-only file system")):
        microbench_by_replay(version, "cpu", stack, MeasureSettings(), stop=threading.Event())


def refuse(dir):
    raise OSError(30, "Read-only file system", str(dir))
