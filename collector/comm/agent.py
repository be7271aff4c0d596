"""torchrun that ends with its starter: `python -m collector.comm.agent PARENT WORDS...`.

By itself torchrun outlives its parent, and its ranks then hold their devices.
"""

import os
import sys

from collector.host import imports
from collector.host.processes import STARTED_BY, die_with_parent, end_at_once

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.environ[STARTED_BY] = str(os.getpid())  # a rank that starts after this process ends exits
    with imports.permanent():
        from torch.distributed.run import main as torchrun
    torchrun(sys.argv[2:])
    end_at_once(0)  # the ranks have ended, and this process opened none of their devices
