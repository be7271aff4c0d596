"""The bundled sample: written from facts, it is read as the same facts."""

import pytest

from collector.codec.errors import BadInput
from collector.model.record import read_table
from collector.profiles.bundled import bundled_file, write_bundled_profile
from collector.profiles.kernel_details import read_profile
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast


def test_bundled_sample_has_its_recorded_statistics(tmp_path):
    facts = {r.case_id: r for r in read_table(bundled_file("quickstart", "facts.csv"))}
    profile = read_profile([write_bundled_profile("quickstart", tmp_path)])
    assert len(profile.records) == 109
    assert sum(r.profile.count for r in profile.records) == 2448
    assert profile.report.communication_rows == 15
    for record in profile.records:
        fact = facts[record.case_id]
        assert record.cells == fact.cells
        assert record.profile.count == fact.profile.count
        assert record.profile.mean_us == pytest.approx(fact.profile.mean_us)
        assert dict(record.profile.counters) == pytest.approx(dict(fact.profile.counters))


def test_bundled_sample_has_the_case_ids_of_its_profile(tmp_path, real_profiles):
    sample = read_profile([write_bundled_profile("quickstart", tmp_path)])
    real = read_profile([real_profiles / "train_cann8.3rc1_rank0_ascend_pt"])
    assert {r.case_id: r.profile.count for r in sample.records} == {
        r.case_id: r.profile.count for r in real.records
    }


@pytest.mark.parametrize("name", ["x", "models", "."])  # other data is next to the samples
def test_unknown_sample_is_refused_with_the_existing_ones(name):
    with pytest.raises(BadInput, match=naming(f"'{name}'", "quickstart")):
        bundled_file(name, "facts.csv")
