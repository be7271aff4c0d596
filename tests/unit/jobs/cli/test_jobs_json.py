"""`--json` prints one JSON value with the content of the lines."""

import json

import pytest

from collector.codec.errors import BadInput
from collector.database.merge import CREATE, merge_plans
from collector.store import open_store
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.jobs.cli.in_process import invoked

pytestmark = pytest.mark.fast


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two versions: the second has one more case."""
    folder = str(tmp_path_factory.mktemp("json") / "data")
    store = open_store(folder)
    for number in (1, 2):
        records = [add_record(n) for n in range(1, number + 2)]
        shard = MadeShard(f"shard-{number}", records, [answered(records, 10.0)])
        plan = MadePlan([shard], number=number, head_commit=number - 1)
        write_campaign(store, plan)
        merge_plans(store, [plan.name], guard=CREATE, author="test")
    return folder


def printed(*words: str):
    done = invoked(*words, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def test_db_prints_commits_differences_and_quality(root: str) -> None:
    newest, oldest = printed("db", "log", "--root", root)
    assert (newest["number"], oldest["number"]) == (2, 1)
    assert [plan["number"] for plan in newest["plans"]] == [2]
    first = invoked("db", "log", "--root", root).stdout.splitlines()[0]
    assert "  3 new measurements, 3 cases, 5 measurements, 1 version directory  " in first, first
    (found,) = printed("db", "diff", "1", "2", "--root", root)
    assert [change["kind"] for change in found["cases"]] == ["added"]
    refused = invoked("db", "diff", "1", "2", "--root", root, "--json", "--csv").exception
    assert isinstance(refused, BadInput)
    (quality,) = printed("db", "quality", "--root", root)
    assert quality["durations"] == 3


def test_status_prints_the_progress_of_each_plan(root: str) -> None:
    (campaign,) = printed("status", "--root", root)
    assert [plan["plan"] for plan in campaign["plans"]][-1] == 2
    last = printed("status", "made", "--root", root)
    newest = last["plans"][-1]
    assert newest["committed_shards"] == 1 and last["lines"]
    assert (newest["cases"], newest["measured_cases"], newest["repeats"]) == (3, 3, 0)


def test_ops_prints_every_declaration_or_one() -> None:
    every = {row["kernel"]: row for row in printed("ops")}
    assert every["SwiGlu"]["family"] == "elementwise" and "-> y" in every["SwiGlu"]["signature"]
    assert printed("ops", "SwiGlu") == [every["SwiGlu"]]


def test_doctor_prints_every_check(tmp_path) -> None:
    done = invoked("doctor", "--root", str(tmp_path / "data"), "--json")
    checks = {check["name"]: check["ok"] for check in json.loads(done.stdout)["checks"]}
    assert checks["package"] and len(checks) > 5


def test_plan_prints_forecast_and_gaps(tmp_path) -> None:
    words = ("plan", "quickstart", "--dry-run", "--root", str(tmp_path / "data"))
    found = printed(*words)
    assert found["campaign"] == "quickstart" and found["forecast"]["cases"] > 100
    assert {"kernel_type", "reason", "cases", "rows", "time_us"} == set(found["gaps"][0])
