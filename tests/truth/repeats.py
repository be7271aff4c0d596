"""Coverage of intervals by a second session, on operators that others measured twice.

    python -m tests.truth.repeats --fit DIR --judge DIR

The files of a folder are those of microsoft/vidur, `data/profiling/compute/{device}/{model}/`. Each
is a stack; a (token count, tensor-parallel size) that occurs twice in a file was measured in two
sessions. The variances of the files of `--fit` become the prior of those of `--judge`, which show
only their first sessions. If both are one folder, random halves of its files judge the others,
twenty times, and the pairs of all splits together meet the limit or miss it; `splits_met` counts
the single splits that meet it. Two folders give one split, which may miss the limit by chance, as
most of those do. Prints one JSON line; exits with 1 if a limit is missed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from collector.quality.evidence import Evidence, Floats, SessionMeans, Trust, evidence_of
from collector.quality.pooled import half_widths
from collector.quality.variance import fit, learn
from collector.quality.variance_parts import variance_parts
from collector.quality.variance_prior import VariancePrior

_REPEATS = 20
_SPLITS = 20
# The project's own prior was made of files like these: here only the fitted prior is used.
UNKNOWING = VariancePrior(
    ratio=0.5, tail_degrees=4, repeat_spread=0.01, device_spread=0.01, weight=1
)
_FAMILIES = {
    **dict.fromkeys(("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj"), "matmul"),
    **dict.fromkeys(("input_layernorm", "post_attention_layernorm"), "norm"),
    "attn_rope": "rotary",
    "emb": "indexing",
    "mlp_act": "rowwise",
    "add": "elementwise",
}
_KEY = ["num_tokens", "num_tensor_parallel_workers"]
_NUMBERS = ("mean_us", "spreads", "repeats")
SHARES = (0.5, 0.8, 0.95)


@cache
def sessions_of(path: Path) -> tuple[SessionMeans, SessionMeans]:
    """Return the first sessions of all cases of a file, and the second ones of those that have
    one."""
    table = pd.read_csv(path)
    again = table.groupby(_KEY).cumcount()
    return _means(table, again == 0), _means(table, again == 1)


def _means(table: pd.DataFrame, chosen: "pd.Series[bool]") -> SessionMeans:
    rows = table[chosen]
    measured = [column for column in rows.columns if column.endswith(".mean")]
    parts = []
    for number, column in enumerate(measured):
        name = column.split(".")[1]
        part = pd.DataFrame({"us": rows[column] * 1e3})
        part["case"] = (rows[_KEY[0]] * 1000 + rows[_KEY[1]]) * len(measured) + number
        part["family"] = _FAMILIES.get(name, name)
        part["spread"] = rows[column.replace(".mean", ".std")] / rows[column]
        part["session"] = rows.index
        parts.append(part[part["us"] > 0])
    found = pd.concat(parts, ignore_index=True)
    return SessionMeans(
        cases=found["case"].to_numpy(np.int64),
        families=found["family"].tolist(),
        sessions=found["session"].to_numpy(np.int64),
        devices=np.zeros(len(found), np.int64),
        mean_us=found["us"].to_numpy(float),
        spreads=found["spread"].to_numpy(float),
        repeats=np.full(len(found), float(_REPEATS)),
        trust=np.full(len(found), Trust.CLEAN),
    )


def both(first: SessionMeans, second: SessionMeans) -> SessionMeans:
    """The measurements of both."""
    return SessionMeans(
        families=[*first.families, *second.families],
        **{
            name: np.concatenate([getattr(first, name), getattr(second, name)])
            for name in (
                "cases",
                "sessions",
                "devices",
                "mean_us",
                "spreads",
                "repeats",
                "trust",
            )
        },
    )


def learnt_from(paths: Sequence[Path]) -> VariancePrior:
    prior = UNKNOWING
    found = [evidence_of(both(*sessions_of(p)), repeat_spread=prior.repeat_spread) for p in paths]
    return learn([one.pairs for one in found], prior)


def judged(paths: Sequence[Path], prior: VariancePrior) -> list[tuple[Floats, Floats]]:
    """Return the pairs of each file: their differences, and the half-width of each share's
    interval."""
    found = []
    for path in paths:
        first, second = sessions_of(path)
        seen = evidence_of(first, repeat_spread=prior.repeat_spread)
        reaches = another_session(seen, prior)
        at = {case: place for place, case in enumerate(first.cases.tolist())}
        places = np.array([at[case] for case in second.cases.tolist()], np.int64)
        apart = np.abs(np.log(second.mean_us / first.mean_us[places]))
        found.append((apart, reaches[:, places]))
    return found


def another_session(seen: Evidence, prior: VariancePrior) -> Floats:
    """Return the half-width of the interval for another session on the same device around each
    mean, a row for each of SHARES: both sessions have their own deviation."""
    parts = variance_parts(seen, fit(seen, prior))
    return np.array(
        [half_widths(2 * (parts.repeats + parts.session), parts.degrees, s) for s in SHARES]
    )


def verdict(apart: Floats, reaches: Floats) -> dict[str, object]:
    held = {
        f"held_{s:.0%}": round(float(np.mean(apart <= r)), 4)
        for s, r in zip(SHARES, reaches, strict=True)
    }
    width = float(np.median(reaches[-1]) / np.quantile(apart, SHARES[-1]))
    is_met = 0.93 <= held["held_95%"] <= 0.97 and 0.46 <= held["held_50%"] <= 0.54 and width <= 1.5
    return {
        "pairs": len(apart),
        **held,
        "median_half_width": round(float(np.median(reaches[-1])), 5),
        "width_to_true": round(width, 3),
        "is_met": is_met,
    }


def judge(fit_on: Sequence[Path], judge_on: Sequence[Path]) -> dict[str, object]:
    prior = learnt_from(fit_on)
    found = judged(judge_on, prior)
    apart, reaches = _together(found)
    reported = {
        "ratio": prior.ratio,
        "tail_degrees": prior.tail_degrees,
        "families": prior.families,
    }
    return {**verdict(apart, reaches), **reported}


def judge_halves(paths: Sequence[Path]) -> dict[str, object]:
    """Judge random halves of the files, each with the variances of the other; return the pairs of
    all splits together, and the differences of single splits, which are large for few sessions."""
    found, shares, met = list[tuple[Floats, Floats]](), [], 0
    for split in range(_SPLITS):
        order = np.random.default_rng(split).permutation(len(paths))
        half = len(paths) // 2
        fitted, held = ([paths[at] for at in part] for part in (order[:half], order[half:]))
        found += (own := judged(held, learnt_from(fitted)))
        apart, reaches = _together(own)
        shares.append([float(np.mean(apart <= reach)) for reach in reaches])
        met += bool(verdict(apart, reaches)["is_met"])
    ends = {
        f"splits_{share:.0%}": [round(min(held), 4), round(max(held), 4)]
        for share, held in zip(SHARES, zip(*shares, strict=True), strict=True)
    }
    return {**verdict(*_together(found)), "splits": _SPLITS, "splits_met": met, **ends}


def _together(found: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    apart, reaches = zip(*found, strict=True)
    return np.concatenate(apart), np.concatenate(reaches, axis=1)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fit", type=Path, required=True)
    parser.add_argument("--judge", type=Path, required=True)
    chosen = parser.parse_args()
    fit_on, judge_on = (sorted(folder.glob("*.csv")) for folder in (chosen.fit, chosen.judge))
    found = judge_halves(fit_on) if fit_on == judge_on else judge(fit_on, judge_on)
    print(json.dumps(found))
    return int(not found["is_met"])


if __name__ == "__main__":
    sys.exit(main())
