"""The step of a model is priced from a database, with one request for all of its rows."""

import json

import pandas as pd

from collector.model.demand import record_of_cells
from collector.model.vocabulary import BASE_CELLS, EP_SIZE, RUNTIME_PREFIX
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
