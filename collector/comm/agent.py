"""torchrun, which ends with whoever started it: `python -m collector.comm.agent PARENT WORDS...`.

Of itself torchrun outlives its parent, and its ranks then hold their devices.
"""

import os
import sys

from collector.host import imports
from collector.host.processes import STARTED_BY, die_with_parent, end_at_once

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.environ[STARTED_BY] = str(os.getpid())  # a rank that begins after our end ends at once
    with imports.for_good():
        from torch.distributed.run import main as torchrun
    torchrun(sys.argv[2:])
    end_at_once(0)  # its ranks are gone, and none of their devices was opened here
