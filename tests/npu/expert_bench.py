"""`python -m tests.npu.expert_bench PLAN FOLDER`: measure a plan of experts over ranks.

Prints the reason of each case that failed, a line each.
"""

import sys
from pathlib import Path

from collector.comm.gang import Rendezvous
from collector.comm.moe.benching import bench, found_in
from collector.comm.moe.moe_plan import MoePlan

if __name__ == "__main__":
    plan, folder = MoePlan.from_json(sys.argv[1]), Path(sys.argv[2])
    bench(plan, Rendezvous(plan.world), folder)
    for _, reason in found_in(folder, plan).failed:
        print(reason)
