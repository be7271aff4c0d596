"""A made step of a profile, for the tests of its page and for screenshots."""

import random
from pathlib import Path

from collector.model.record import CaseRecord, ProfileStatistics
from collector.profiles.step_trace import StepTrace
from collector.report.comparison import Isolated, compare_cases, m6, step_sum
from collector.report.pages import Folder
from collector.report.step_pages import ComparedStep, write_step
from tests.bench.varied_database import HOSTILE
from tests.unit.collector.database.campaign_maker import record_of_shapes

_KERNELS = {  # of a decode step: launches, and microseconds of a launch
    "MatMulV2": (64, 52.0),
    "FusedInferAttentionScore": (16, 88.0),
    "QuantBatchMatmulV3": (32, 31.0),
    "AddRmsNormBias": (32, 9.0),
    "SwiGlu": (16, 7.0),
    "DispatchFFNCombine": (8, 210.0),
    "ReshapeAndCacheNdKernel": (16, 5.5),
    "AscendQuantV2": (32, 4.2),
    "RmsNorm": (4, 6.0),
    "Cast": (2, 12.0),
}
STEPS = 4


def made_step(profile: str = f"PROF_000001 {HOSTILE}") -> ComparedStep:
    """A step whose kernels are slower in the run than apart, with some that are not measured."""
    chance = random.Random(3)
    records: list[CaseRecord] = []
    isolated, context = {}, {}
    for kernel, (launches, each_us) in _KERNELS.items():
        for at in range(4):
            mean_us = each_us * (1 + 0.2 * at)
            record = record_of_shapes(
                *(
                    kernel,
                    f'"{16 * (at + 1)},5120;5120,{640 * (at + 1)}"',
                    f'"{16 * (at + 1)},640"',
                ),
                profile=ProfileStatistics(STEPS * launches // 4, mean_us, mean_us, 0.3),
            )
            records.append(record)
            if chance.random() < 0.85:
                apart_us = mean_us * chance.uniform(0.72, 1.02)
                name = record.case_id
                isolated[name] = Isolated(apart_us, 0.97 * apart_us, 1.03 * apart_us)
                if chance.random() < 0.7:
                    context[name] = Isolated(apart_us * chance.uniform(1.0, 1.12))
    whole_us = sum(one.profile.total_us for one in records if one.profile)
    trace = StepTrace(STEPS, 0.97 * whole_us, 0.21 * whole_us, 0.09 * whole_us)
    cases = compare_cases(records, isolated, dict.fromkeys([records[-1].case_id], HOSTILE), context)
    known = m6(cases, trace, lambda _: 10.0)
    place = "ATLAS_800_A3_752T_128G_DIE/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5"
    return ComparedStep(profile, place, cases, trace, step_sum(cases, trace), known)


def write_made_step(folder: Path, *profile: str) -> Path:
    target = folder / "step"
    with Folder(target) as pages:
        write_step(pages, made_step(*profile))
    return target
