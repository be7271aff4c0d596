"""Sessions on a host where CANN and a custom OPP have one kernel: each case is run by the library
that it requests, in a separate session.

The custom OPP is a header of vLLM-Ascend 0.18's signature, and its extension one operator that is
recorded under the C function's name. The fake's duration follows from the arguments, which differ
between the two.
"""

import threading
from dataclasses import replace

import pytest

from collector.measuring.batches import Batches, SessionSize
from collector.measuring.instrument import ReplayInstrument, SessionSettings
from collector.model.measurement import Library, Outcome, Proof
from collector.model.plan import Limits, MeasureSettings, ShardCase
from collector.model.stack import Runtime, Stack
from collector.model.vocabulary import LIBRARY
from tests.fixtures.op_rows import rows_of
from tests.npu.fakecann.build import LAUNCHES
from tests.npu.test_npu_sessions import bench_in
from tests.unit.collector.replay.replay_cases import PROVENANCE
from tests.unit.collector.replay.test_replay_answering import HEADER
from tools.operators.releases.wheels import FOLDER

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

_EXTENSION = '''
"""Stands for vllm_ascend.utils of 0.18."""
_KEPT = []


def enable_custom_op():
    import torch
    import sys

    sys.path.append({launches!r})
    from opmeter_launches import record

    def attend(query, key, value, indices, scale, block, sparse_mode=3, **named):
        out = torch.empty_like(query)
        lengths = named["actual_seq_lengths_query"], named["actual_seq_lengths_kv"]
        ropes = named["query_rope"], named["key_rope"]
        how = block, named["layout_query"], named["layout_kv"], sparse_mode
        slots = query, key, value, indices, named["block_table"], *lengths, *ropes
        record(torch, "aclnnSparseFlashAttention", *slots, *how, out)
        return out

    library = torch.library.Library("_C_ascend", "FRAGMENT")
    library.define({schema!r})
    library.impl("npu_sparse_flash_attention", attend, "PrivateUse1")
    _KEPT.append(library)
'''


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A bench whose sessions find the custom OPP, and the extension."""
    bench = bench_in(tmp_path, monkeypatch)
    opp, package = tmp_path / "vendors" / "vllm-ascend", tmp_path / "site" / "vllm_ascend"
    (opp / "op_api" / "include").mkdir(parents=True)
    (opp / "op_api" / "include" / "aclnn_sparse_flash_attention.h").write_text(HEADER)
    package.mkdir(parents=True)
    schemas = (FOLDER / "vllm_ascend-0.18.0.txt").read_text().splitlines()
    schema = next(line for line in schemas if line.startswith("npu_sparse_flash_attention("))
    (package / "__init__.py").touch()
    (package / "utils.py").write_text(_EXTENSION.format(schema=schema, launches=str(LAUNCHES)))
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=":")
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", str(opp))
    return bench


def test_each_case_is_run_by_its_requested_library(bench):
    row = rows_of("SparseFlashAttention")[0]
    requested = [
        row,
        *(replace(row, extra={**row.extra, LIBRARY: name}) for name in ("cann", "vllm-ascend")),
    ]
    stack = Stack("ATLAS_800_A3_752T_128G_DIE", "2.13.0", vllm="0.18.0")
    settings = SessionSettings("npu", stack, MeasureSettings(repeat_count=3), Limits())
    instrument = ReplayInstrument(settings, bench.folder, threading.Event(), lambda *reported: None)
    todo, answers = [ShardCase(record, 0.01) for record in requested], {}
    for session in (1, 2):
        batch = Batches(SessionSize(60.0, settings.measure, bench.folder)).next(todo)
        provenance = replace(PROVENANCE, session=session, runtime=Runtime.FAKE)
        for m in instrument.measure(batch, provenance).measurements:
            answers[m.case_id] = m
        todo = [case for case in todo if case not in batch]
    assert not todo
    served, of_cann, of_vllm_ascend = (answers[record.case_id] for record in requested)
    assert [(m.outcome, m.reason) for m in answers.values()] == [(Outcome.OK, "")] * 3
    assert of_cann.identity is Proof.PROVED  # a kernel that a test registers has no cells
    assert (served.library, of_vllm_ascend.library) == (Library.VLLM_ASCEND,) * 2
    assert of_cann.library is Library.CANN
    assert of_cann.assumes
    assert served.timing.mean_us == of_vllm_ascend.timing.mean_us != of_cann.timing.mean_us
