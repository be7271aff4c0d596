"""Record what vLLM-Ascend's own extension calls for a mixture of experts over two ranks, and which
arguments it takes (`stock_calls/`): `python -m tests.npu.stock_extension [RELEASE...]`.

Each release runs with the torch and torch_npu that it is built for, all three as on PyPI, in a
separate environment in the cache: 7 GB and minutes for each, once. `tests/stacks` compares the
files with another recording; read the difference before it is committed.
"""

import ctypes
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from collector.engine.calls import read_calls
from collector.engine.environments import STACKS, install_stack, stack_folder
from tests.npu.fakecann.build import build_fake_cann, environment

FOLDER = Path(__file__).parent / "stock_calls"
OPERATORS = ("dispatch_ffn_combine", "dispatch_gmm_combine_decode")
RANKS = 2
_ROOT = Path(__file__).parents[2]
_INSIDE, _RANK = "--inside", "--rank"
_KERNELS = ("DispatchFFNCombine", "DispatchGmmCombineDecode")


def main(arguments: list[str]) -> int:
    """Record the releases named, or all."""
    if arguments[:1] == [_INSIDE]:
        return _record(Path(arguments[1]), Path(arguments[2]))
    if arguments[:1] == [_RANK]:
        return _call(int(arguments[1]))
    for release in arguments or STACKS:
        install_stack(release)
        reported = recorded_experts(release)
        experts_path(release).write_text(reported)
        print(f"{release}: {len(reported.splitlines())} schemas and calls of {RANKS} ranks")
    return 0


def experts_path(release: str) -> Path:
    return FOLDER / f"{release}.txt"


def recorded_experts(release: str) -> str:
    """Return what an installed stack's extension calls now."""
    return run_inside("tests.npu.stock_extension", release)


def run_inside(module: str, release: str) -> str:
    """Return the output of a module that an installed stack's own Python runs: `--inside SITE
    OUT`."""
    folder = stack_folder(release)
    env = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "calls"
        python, site = str(folder / "python/bin/python"), str(folder / "site")
        inside = [python, "-m", module, _INSIDE, site, str(out)]
        subprocess.run(inside, cwd=_ROOT, check=True, env=env, stdout=sys.stderr)
        return out.read_text()


def _record(site: Path, out: Path) -> int:
    """Run by the release's own Python: let all ranks call, and write the results."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "calls"
        env = environment(build_fake_cann(site), devices=RANKS, log=log)
        env |= {"SITE": str(site), "WORLD_SIZE": str(RANKS)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.npu.stock_extension", _RANK, str(rank)],
                env={**env, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        message = [rank.communicate(timeout=300)[0] for rank in ranks]
        calls = sorted(call.text for call in read_calls(log) if _is_of_experts(call.text))
    schemas = [line for line in message[0].splitlines() if line.startswith("_C_ascend::")]
    out.write_text("\n".join([*schemas, *calls]) + "\n")
    return max(abs(rank.wait()) for rank in ranks)


def _free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def _is_of_experts(call: str) -> bool:
    return any(kernel in call for kernel in _KERNELS)


def _call(rank: int) -> int:
    """One rank: each operator once, with weights of INT8, and the fused one with others too."""
    import torch
    import torch.distributed as dist
    import torch_npu  # noqa: F401  (registers the device)

    extension = next((Path(os.environ["SITE"]) / "vllm_ascend").glob("vllm_ascend_C*.so"))
    # As the package does, whose import requires vllm.
    ctypes.CDLL(str(extension.with_name("libvllm_ascend_kernels.so")), ctypes.RTLD_GLOBAL)
    torch.ops.load_library(str(extension))
    from collector.comm.moe.fused_kernel import open_fused
    from collector.comm.moe.moe_plan import MoeCase
    from collector.ranks.experts import ExpertCall

    device = torch.device("npu", rank)
    torch.npu.set_device(device)
    dist.init_process_group("hccl")
    dist.all_reduce(torch.zeros(1, device=device))  # the group has its name from then on
    for name in OPERATORS:
        print(*torch._C._jit_get_schemas_for_operator(f"_C_ascend::{name}"))
        prepare = open_fused(name)
        takes = {one.name for one in getattr(torch.ops._C_ascend, name).default._schema.arguments}
        bits = (8, 16) if name == OPERATORS[0] else (8,)
        for each in (*bits, 4) if "bias1" in takes else bits:
            call = ExpertCall(8, 64, 32, 4, 2, RANKS, weight_bits=each)
            prepare(MoeCase(call, 7), rank, str(device))()
    torch.npu.synchronize()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
