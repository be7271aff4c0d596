"""A timing consists of durations: impossible ones are refused, whatever their origin."""

from dataclasses import fields

import pytest

from collector.codec.errors import BadInput
from collector.model.measurement import Measurement, Outcome, Provenance, Timing
from collector.model.row import from_row, to_row

pytestmark = pytest.mark.fast

_LONG = repr(1e9)
TIMING = Timing(11.0, 10.0, 12.0, 10.9, 9.0, 9.5, 12.5, 0.01)
PROVENANCE = Provenance(
    "test", 1, "hash", 0, "shard", "attempt", 0, "stack", "node", None, 0, "real", None, "0", None
)
# An interval may reach below zero if little is known; a tail and a spread may be long.
POSSIBLE = {("ci_low_us", "-1.0"), *((name, _LONG) for name in ("ci_high_us", "p90_us", "spread"))}


@pytest.mark.parametrize("name", [field.name for field in fields(Timing)])
@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1.0", _LONG])
def test_row_with_an_impossible_timing_is_refused(name, text):
    measured = Measurement("c", "Add", Outcome.OK, "", PROVENANCE, timing=TIMING)
    row = to_row(measured)
    assert from_row(row) == measured
    changed = row | {name: text}
    if (name, text) in POSSIBLE:
        assert from_row(changed) != measured
    else:
        with pytest.raises(BadInput):
            from_row(changed)


@pytest.mark.parametrize("us", [0.0, -1.0, float("nan"), float("inf")])
def test_zero_mean_is_not_a_timing(us):
    Timing(*[1.5] * 7, 0.0)
    with pytest.raises(BadInput, match="timing"):
        Timing(*[us] * 7, 0.0)
