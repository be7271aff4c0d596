"""The process of a rank, or one that a rank starts: `python -m collector.comm.rank_process PROGRAM
WORDS...` is `python -m PROGRAM WORDS...` with torch imported before it and kept. If no driver was
loaded, the process exits without torch's cleanup; a driver may have work to do at exit."""

import runpy
import sys
from importlib.util import find_spec

from collector.host import imports
from collector.host.processes import end_at_once

if __name__ == "__main__":
    del sys.argv[0]
    program = sys.argv[0]
    if find_spec(program) is None:  # report it before importing torch
        sys.exit(f"module not found: {program}")
    with imports.permanent():
        import torch.distributed
    runpy.run_module(program, run_name="__main__", alter_sys=True)
    if "torch_npu" not in sys.modules and not torch.cuda.is_initialized():
        end_at_once(0)
