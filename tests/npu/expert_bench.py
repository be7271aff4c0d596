"""Measure a plan of experts over ranks: `python -m tests.npu.expert_bench PLAN FOLDER`.

Prints the reason of each failed case, one per line.
"""

import sys
from pathlib import Path

from collector.comm.gang import Rendezvous
from collector.comm.moe.benching import bench
from collector.comm.moe.moe_plan import MoePlan
from collector.comm.moe.moe_table import moe_found
from collector.comm.rank_files import read_rank_plan, read_rank_results

if __name__ == "__main__":
    plan, folder = read_rank_plan(MoePlan, sys.argv[1]), Path(sys.argv[2])
    bench(plan, Rendezvous(plan.world), folder)
    for _, reason in moe_found(plan, read_rank_results(folder)).failed:
        print(reason)
