"""Launch cases of models in their real sizes through the stock torch_npu on the fake NPU: `python
-m tests.npu.model_sample [--rows 50] [--seed 0] [--one-in 1]`.

A random sample of each kernel type is drawn from the packaged recordings, in all layouts and
releases and in several passes; `--one-in 4` uses a quarter of these. Exits with 1 if a launch was
refused or launched nothing, and prints which.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

from collector.codec.errors import BadInput
from collector.model.record import CaseRecord, write_table
from collector.ops.refusals import refusal
from collector.ops.registry import find_operator
from collector.ops.spec import Need
from collector.ranks.distribution import DISTRIBUTE_KERNELS
from collector.ranks.experts import KERNELS as OF_GANGS
from collector.workloads.deployments import (
    deployed_step,
    find_deployment,
    layouts_in,
    packaged_layouts,
)
from collector.workloads.serving import Batch, Phase

_BATCHES = (
    *(Batch(Phase.DECODE, requests, 1, keys) for requests, keys in product((1, 5, 16), (9, 4100))),
    Batch(Phase.DECODE, 8, 1, 600, padding=3),
    Batch(Phase.DECODE, 6, 2, 900, predicted=1),
    Batch(Phase.PREFILL, 1, 515, 515),
    Batch(Phase.PREFILL, 2, 128, 700),
    Batch(Phase.PREFILL, 1, 64, 64, mixed_decodes=6, followed_keys=1030),
    Batch(Phase.PREFILL, 1, 1200, 1200),
)
_MOST_BYTES = 2 << 30  # of one case's tensors: the fake's memory is that of this machine


def sample(rows: int, seed: int, one_in: int) -> dict[str, list[CaseRecord]]:
    """Return at most this many cases of each kernel type that one NPU can launch here, the same for
    a seed: kernels of Triton and of several ranks are excluded."""
    found: dict[str, dict[str, CaseRecord]] = {}
    for record in _recorded(Random(seed), one_in):
        found.setdefault(record.kernel_type, {})[record.case_id] = record
    return {
        kernel: [of[name] for name in Random(f"{seed} {kernel}").sample(sorted(of), k)]
        for kernel, of in sorted(found.items())
        if (k := min(rows, len(of)))
    }


def _recorded(chance: Random, one_in: int) -> Iterator[CaseRecord]:
    for (model, release), names in packaged_layouts().items():
        for layout, batch in product((one for name in names for one in layouts_in(name)), _BATCHES):
            if chance.randrange(one_in):
                continue
            deployment = find_deployment(model, release, layout)
            assert deployment is not None
            try:
                step = deployed_step(deployment, batch)
            except BadInput:  # not recorded in this layout
                continue
            yield from (one.record for one in step.kernels if _is_launched(one.record))


def _is_launched(record: CaseRecord) -> bool:
    op, case = find_operator(record.kernel_type), record.case
    if op is None or record.kernel_type in (*OF_GANGS, *DISTRIBUTE_KERNELS):
        return False
    if refusal(case, find_operator, "npu") is not None:  # listed in test_jobs_packaged.py
        return False
    slots = (*(case.inputs or ()), *(case.outputs or ()))
    return Need.TRITON not in op.npu.needs and sum(one.size_bytes for one in slots) <= _MOST_BYTES


def main(rows: int, seed: int, one_in: int) -> int:
    chosen = sample(rows, seed, one_in)
    with tempfile.TemporaryDirectory(prefix="opmeter-model-rows-") as folder:
        for kernel, records in chosen.items():
            (Path(folder) / f"{kernel}.csv").write_bytes(write_table(records))
        os.environ["OPMETER_OP_ROWS"] = (
            folder  # read by the readers of the tables, here and in children
        )
        from tests.npu.fakecann.build import build_fake_cann
        from tests.npu.replayed import replay

        found = replay(build_fake_cann(), chosen)
    wrong = 0
    for kernel, replayed in found.items():
        failed = [one for one in replayed if one.error or not one.calls]
        wrong += len(failed)
        print(f"{kernel}: {len(replayed)} cases, {len(failed)} of them not launched")
        for one in failed[:3]:
            print(f"  {one.case.describe()[:300]}: {one.error or 'nothing was launched'}")
    print(f"{sum(map(len, found.values()))} cases of {len(found)} kernel types, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one-in", type=int, default=1)
    message = parser.parse_args()
    sys.exit(main(message.rows, message.seed, message.one_in))
