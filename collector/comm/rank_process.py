"""The process of a rank: `python -m collector.comm.rank_process PROGRAM WORDS...`, started by
torchrun, is `python -m PROGRAM WORDS...` with torch imported for good before it."""

import runpy
import sys

from collector.host import imports

if __name__ == "__main__":
    with imports.for_good():
        import torch.distributed  # noqa: F401
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
