"""The time to plan 100,000 cases, and how well the shards keep 64 and 256 devices busy.

    PYTHONPATH=. python tests/bench/bench_plan.py

Exits with 1 if planning takes 10 s or more of processor time, or a packing is below 98 % of the
ideal max(total / devices, longest case).
"""

import random
import sys
import time
from math import prod
from pathlib import Path

from collector.model.case import Case
from collector.model.plan import PlannedSource
from collector.model.record import CaseRecord, ProfileStatistics
from collector.model.stack import Stack
from collector.model.vocabulary import COUNTERS
from collector.ops.spec import OpSpec
from jobs.campaign.campaign_file import Campaign, campaign_from_text
from jobs.planning.plan_cases import PlanRequest
from jobs.planning.plan_making import PlannedRound, make_plan
from jobs.planning.shard_cutting import pack, shards_a_device

CASES = 100_000
LIMIT_S = 10.0
LEAST_EFFICIENCY = 0.98
DEVICES = (64, 256)
MINUTES_A_DEVICE = (3, 10, 60)
DECADES = 5
START_S = 40.0

KERNELS = tuple(f"Kernel{index}" for index in range(40))
DTYPES = ("FLOAT", "DT_BF16", "FLOAT16", "INT8")


def main() -> int:
    """Print one line per figure; return 1 if one misses its limit."""
    records = synthetic_records(random.Random(7), CASES)
    failures = 0
    for devices in DEVICES:
        campaign = synthetic_campaign(devices)
        seconds, planned = timed_plan(campaign, fresh(records))
        efficiency = planned.plan.forecast.floor_s / planned.plan.forecast.wall_s
        say(
            f"plan of {planned.plan.forecast.cases:,} cases for {devices} devices: "
            f"{seconds:.2f} s of processor time "
            f"(limit {LIMIT_S:.0f} s), {len(planned.plan.shards):,} shards, "
            f"{efficiency:.1%} of the floor, start-up included"
        )
        failures += seconds >= LIMIT_S
        for minutes in MINUTES_A_DEVICE:
            efficiency = packing_efficiency(random.Random(minutes), devices, minutes * 60.0)
            say(
                f"packing for {devices} devices, {minutes} minutes each, {DECADES} decades: "
                f"{efficiency:.2%} of the ideal (least {LEAST_EFFICIENCY:.0%})"
            )
            failures += efficiency < LEAST_EFFICIENCY
    return 1 if failures else 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def timed_plan(campaign: Campaign, records: tuple[CaseRecord, ...]) -> tuple[float, PlannedRound]:
    """Return the plan of a new request without cached values, and the processor time it took."""
    request = PlanRequest(
        campaign=campaign,
        number=1,
        head_commit=0,
        round="",
        stack=Stack(device="ATLAS_800_A3_752T_128G_DIE", torch="2.9.0", cann="8.5"),
        sources=((PlannedSource("synthetic", "0" * 64, len(records), False), records),),
        head_results={},
        op_mapping=None,
        retry_failed=False,
    )
    started = time.process_time()
    planned = make_plan(request, find=synthetic_operators().get)
    return time.process_time() - started, planned


def packing_efficiency(rng: random.Random, devices: int, mean_s: float) -> float:
    """Pack log-uniform costs over five decades, in groups of very different sizes."""
    longest = 10 ** rng.uniform(0, 2)
    costs: list[float] = []
    total = 0.0
    while total < devices * mean_s:
        costs.append(longest * 10 ** rng.uniform(-DECADES, 0))
        total += costs[-1]
    groups: dict[int, list[int]] = {}
    for index in range(len(costs)):
        groups.setdefault(int(rng.paretovariate(0.6)), []).append(index)
    shards = shards_a_device(total, devices, synthetic_campaign(devices).shards, START_S)
    return pack(list(groups.values()), costs, devices, shards).device_balance


def synthetic_campaign(devices: int) -> Campaign:
    text = f"campaign: bench\nsources: [{{bundled: any}}]\nbackend: npu\ndevices: {devices}\n"
    return campaign_from_text(text, path="bench.yaml", base=Path("."))


def synthetic_records(rng: random.Random, count: int) -> list[tuple[str, dict[str, str], float]]:
    """Return distinct rows as a profile has them: kernel type, cells, mean duration."""
    rows = []
    for index in range(count):
        dtype = rng.choice(DTYPES)
        shapes = [f"{index + 1},{2 ** rng.randrange(3, 12)}", f"{2 ** rng.randrange(3, 12)}"]
        cells = {
            "OP State": "static",
            "Accelerator Core": "AI_CORE",
            "Input Shapes": '"' + ";".join(shapes) + '"',
            "Input Data Types": f"{dtype};{dtype}",
            "Input Formats": "ND;ND",
            "Output Shapes": f'"{shapes[0]}"',
            "Output Data Types": dtype,
            "Output Formats": "ND",
        }
        rows.append((rng.choice(KERNELS), cells, 10 ** rng.uniform(0, 4)))
    return rows


def fresh(rows: list[tuple[str, dict[str, str], float]]) -> tuple[CaseRecord, ...]:
    """Return records that have not computed their ids yet."""
    counters = tuple((name, 0.125) for name in COUNTERS)
    return tuple(
        CaseRecord(kernel, cells, {}, ProfileStatistics(3, mean_us, mean_us, 0.1, counters))
        for kernel, cells, mean_us in rows
    )


def synthetic_operators() -> dict[str, OpSpec]:
    """Return one operator for all but the last kernel type, which stays unsupported."""

    def flops(case: Case) -> int:
        return prod(prod(slot.shape or ()) for slot in case.inputs or ())

    return {
        kernel: OpSpec(kernel, "", "x, y -> z", reference=lambda torch, x, y: x, flops=flops)
        for kernel in KERNELS[:-1]
    }


if __name__ == "__main__":
    sys.exit(main())
