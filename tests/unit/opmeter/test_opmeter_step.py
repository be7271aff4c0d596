"""The step of a model is priced from a database, with one request for all of its rows."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd
import pytest

from collector.model.demand import record_of_cells
from collector.model.record import CaseRecord
from collector.model.vocabulary import (
    BASE_CELLS,
    EP_SIZE,
    INPUT_CELLS,
    OUTPUT_CELLS,
    RUNTIME_PREFIX,
    is_absent_dtype,
)
from collector.workloads.deployments import PackagedDeployment, deployed_step, find_deployment
from collector.workloads.layout import layout_of
from collector.workloads.serving import Batch, Phase
from tests.unit.jobs.cli.in_process import opmeter_here
from tests.unit.opmeter.made import recorded, version_of


def test_rows_of_a_step_are_queried_together() -> None:
    words = ("model", "show", "qwen3-32b", "--layout", "tp=4", "--tokens", "16", "--json")
    kernels = json.loads(opmeter_here(*words).stdout)["kernels"]
    records = {}
    for row in kernels:
        cells = {
            name: text
            for name, text in row.items()
            if name in (*BASE_CELLS, EP_SIZE) or name.startswith(RUNTIME_PREFIX)
        }
        record = record_of_cells(row["Kernel Type"], cells)
        assert record.case_id == row["case_id"]
        records[record.case_id] = record
    assert len(records) > 10
    mean_us = {case: 1.0 + number for number, case in enumerate(records)}
    version = version_of([recorded(one, mean_us[case]) for case, one in records.items()])
    step = pd.DataFrame(kernels)
    answers = version.query_many(step)
    assert set(answers["channel"]) == {"measured"}
    assert answers["value_us"].tolist() == [mean_us[case] for case in step["case_id"]]
    total_us = float((answers["value_us"] * step["times"]).sum())
    assert total_us == sum(mean_us[row["case_id"]] * row["times"] for row in kernels)


DEPLOYMENTS = (
    ("qwen3-32b", "tp=16,nz=2"),
    ("deepseek-v3", "tp=8,dp=2,ep=16,sequence_split,quantisation=w8a8,nz=1"),
)


def deployment_of(model: str, layout: str) -> PackagedDeployment:
    found = find_deployment(model, "vllm-ascend-0.18", layout_of(layout))
    assert found is not None
    return found


def decode(deployment: PackagedDeployment, requests: int, keys: int) -> list[CaseRecord]:
    step = deployed_step(deployment, Batch(Phase.DECODE, requests, 1, keys))
    return [one.record for one in step.kernels]


@pytest.mark.parametrize(("model", "layout"), DEPLOYMENTS)
def test_decode_of_any_batch_and_length_is_between_four_of_each(model: str, layout: str) -> None:
    deployment = deployment_of(model, layout)
    measured = {
        record.case_id: record
        for requests, keys in itertools.product((8, 16, 64, 128), (1024, 4096, 16384, 32768))
        for record in decode(deployment, requests, keys)
    }
    rows = [recorded(one, 2.0 + at) for at, one in enumerate(measured.values())]
    version = version_of(rows)
    for requests, keys in ((16, 4096), (32, 2000), (24, 5000), (96, 30_000)):
        for record in decode(deployment, requests, keys):
            answer = version.query_record(record)
            assert answer.reason is None, (requests, keys, record.case.describe(), answer.reason)
            assert (record.case_id in measured) == (answer.channel == "measured")


def as_profiled(records: list[CaseRecord]) -> Iterator[CaseRecord]:
    """Yield the records as a profile of the same pass has them: plain tensors are ND, products
    leave absent inputs out, and the pools of that server have other sizes."""
    for record in records:
        cells = dict(record.cells)
        columns = [cells[name].strip('"').split(";") for name in (*INPUT_CELLS, *OUTPUT_CELLS)]
        if record.kernel_type == "QuantBatchMatmulV3":
            shapes, dtypes, _ = columns[:3]
            kept = [at for at, one in enumerate(dtypes) if shapes[at] or not is_absent_dtype(one)]
            columns[:3] = [[cell[at] for at in kept] for cell in columns[:3]]
        for side in (2, 5):
            columns[side] = ["ND" if one in ("NCL", "NCHW") else one for one in columns[side]]
        for side in (0, 3):
            columns[side] = [one.replace("512,128,1,", "731,128,1,") for one in columns[side]]
        texts = (";".join(cell) for cell in columns)
        named = zip((*INPUT_CELLS, *OUTPUT_CELLS), texts, strict=True)
        yield replace(record, cells={**cells, **dict(named)})


@pytest.mark.parametrize(("model", "layout"), DEPLOYMENTS)
def test_profile_and_recording_of_one_pass_answer_each_other(model: str, layout: str) -> None:
    pass_ = decode(deployment_of(model, layout), 16, 4096)
    profiled = list(as_profiled(pass_))
    assert any(one.cells != other.cells for one, other in zip(pass_, profiled, strict=True))
    assert [one.case_id for one in profiled] == [one.case_id for one in pass_]
    for measured, requested in ((pass_, profiled), (profiled, pass_)):
        known = {one.case_id: one for one in measured}
        version = version_of([recorded(one, 2.0 + at) for at, one in enumerate(known.values())])
        assert {version.query_record(one).channel for one in requested} == {"measured"}
