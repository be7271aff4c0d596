"""Coverage of intervals by a second collection of one table.

    python -m tests.truth.again FIRST AGAIN

Two parquet files of ai-dynamo/aiconfigurator, `gemm_perf.parquet`: the same cases, collected twice,
one latency each. A random half of the cases is shown from both collections; for the other half,
intervals made of the first are compared with the second. `blind` is the same if only as many cases
are shown from both as a campaign repeats: 2 %, up to 12 in each decade. Results of so few are
random, so they are judged over many draws, with the differences of single draws. Prints one JSON
line; exits with 1 if a limit is missed.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from collector.quality.evidence import Floats, SessionMeans, Trust, evidence_of
from collector.quality.pooled import half_widths
from collector.quality.variance import fit
from collector.quality.variance_parts import variance_parts
from collector.quality.variance_prior import VariancePrior
from tests.truth.repeats import SHARES, UNKNOWING, both, verdict

_KEY = ["gemm_dtype", "m", "n", "k"]
_BLIND_SHARE, _BLIND_OF_DECADE = 0.02, 12
_DRAWS = 60


def judge(first: pd.DataFrame, again: pd.DataFrame, prior: VariancePrior) -> dict[str, object]:
    """Half of the cases are shown from both."""
    joined = _joined(first, again, 0)
    shown = joined["order"].to_numpy() % 2 == 0
    return {"shown": int(shown.sum()), **verdict(*_held_against(joined, shown, prior))}


def judge_blind(
    first: pd.DataFrame, again: pd.DataFrame, prior: VariancePrior, draws: int = _DRAWS
) -> dict[str, object]:
    """A few are, drawn many times; every draw is judged by one case in ten of the others."""
    found, held = [], []
    for draw in range(draws):
        joined = _joined(first, again, draw)
        shown = _blind(joined)
        found.append(_held_against(joined, shown, prior, every=10))
        held.append(float(np.mean(found[-1][0] <= found[-1][1][-1])))
    apart, reaches = zip(*found, strict=True)
    reported = verdict(np.concatenate(apart), np.concatenate(reaches, axis=1))
    ends = [round(end, 4) for end in (min(held), max(held))]
    return {"shown": int(shown.sum()), "draws": draws, **reported, "draws_95%": ends}


def _joined(first: pd.DataFrame, again: pd.DataFrame, draw: int) -> pd.DataFrame:
    """Return the cases of both, in a random order."""
    joined = first.merge(again, on=_KEY, suffixes=("", "_again"))
    order = np.random.default_rng(draw).permutation(len(joined))
    return joined.assign(order=order).sort_values("order", ignore_index=True)


def _held_against(
    joined: pd.DataFrame, shown: np.ndarray, prior: VariancePrior, every: int = 1
) -> tuple[Floats, Floats]:
    """Return, for the cases that are not shown from both, the differences and the half-widths of
    the intervals."""
    means = both(_means(joined, "latency", 0), _means(joined[shown], "latency_again", 1))
    evidence = evidence_of(means, repeat_spread=prior.repeat_spread)
    parts = variance_parts(evidence, fit(evidence, prior))
    hidden = np.flatnonzero(~shown)[::every]
    apart = np.abs(np.log(joined["latency_again"] / joined["latency"]).to_numpy()[hidden])
    variance = 2 * (parts.repeats + parts.session)[hidden]
    return apart, np.array(
        [half_widths(variance, parts.degrees[hidden], share) for share in SHARES]
    )


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
        trust=np.full(len(rows), Trust.CLEAN),
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=Path)
    parser.add_argument("again", type=Path)
    chosen = parser.parse_args()
    first, again = (pd.read_parquet(path) for path in (chosen.first, chosen.again))
    found = judge(first, again, UNKNOWING)
    blind = judge_blind(first, again, UNKNOWING)
    print(json.dumps({**found, "blind": blind}))
    return int(not (found["is_met"] and blind["is_met"]))


if __name__ == "__main__":
    sys.exit(main())
