"""Whether intervals hold a second collection of one table.

    python -m tests.truth.again FIRST AGAIN

Two parquet files of ai-dynamo/aiconfigurator, `gemm_perf.parquet`: the same cases, collected twice,
one latency each. Half of the cases, by their hash, are shown from both collections; for the other
half, intervals made of the first are held against the second. `blind` says the same where no more
cases are shown from both than a campaign measures again: 2 %, up to 12 in each decade.
One JSON line; exit 1 where a bar is missed.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from collector.canonical import short_hash
from collector.quality.evidence import SessionMeans, evidence_of
from collector.quality.stack_interval import reach
from collector.quality.variance import fit
from collector.quality.variance_parts import parts_of
from collector.quality.variance_prior import VariancePrior
from tests.truth.repeats import SHARES, UNKNOWING, both, verdict

_KEY = ["gemm_dtype", "m", "n", "k"]
_BLIND_SHARE, _BLIND_OF_DECADE = 0.02, 12


def judge(first: pd.DataFrame, again: pd.DataFrame, prior: VariancePrior, *, blind: bool):
    joined = first.merge(again, on=_KEY, suffixes=("", "_again"))
    cases = joined[_KEY].astype(str).agg("|".join, axis=1)
    order = np.array([int(short_hash(case, 12), 16) for case in cases])
    joined = joined.assign(order=order).sort_values("order", ignore_index=True)
    shown = _blind(joined) if blind else joined["order"].to_numpy() % 2 == 0
    seen = _means(joined, "latency", 0)
    means = both(seen, _means(joined[shown], "latency_again", 1))
    evidence = evidence_of(means, repeat_spread=prior.repeat_spread)
    parts = parts_of(evidence, fit(evidence, prior))
    hidden = np.flatnonzero(~shown)
    apart = np.abs(np.log(joined["latency_again"] / joined["latency"]).to_numpy()[hidden])
    variance = 2 * (parts.repeats + parts.session)[hidden]
    reaches = np.array([reach(variance, parts.degrees[hidden], share) for share in SHARES])
    return {"shown": int(shown.sum()), **verdict(apart, reaches)}


def _blind(joined: pd.DataFrame) -> np.ndarray:
    decade = np.floor(np.log10(joined["latency"]))
    place = joined.groupby(decade).cumcount()
    return ((place < _BLIND_OF_DECADE) & (place < _BLIND_SHARE * len(joined))).to_numpy()


def _means(rows: pd.DataFrame, latency: str, session: int) -> SessionMeans:
    return SessionMeans(
        cases=rows["order"].to_numpy(np.int64),
        families=rows["gemm_dtype"].tolist(),
        sessions=np.full(len(rows), session),
        devices=np.zeros(len(rows), np.int64),
        mean_us=rows[latency].to_numpy(float) * 1e3,
        spreads=np.full(len(rows), np.nan),
        repeats=np.ones(len(rows)),
        is_clean=np.ones(len(rows), np.bool_),
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=Path)
    parser.add_argument("again", type=Path)
    chosen = parser.parse_args()
    first, again = (pd.read_parquet(path) for path in (chosen.first, chosen.again))
    found = judge(first, again, UNKNOWING, blind=False)
    print(json.dumps({**found, "blind": judge(first, again, UNKNOWING, blind=True)}))
    return int(not found["is_met"])


if __name__ == "__main__":
    sys.exit(main())
