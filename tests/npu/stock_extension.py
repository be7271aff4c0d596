"""`python -m tests.npu.stock_extension [RELEASE...]`: writes anew what vLLM-Ascend's own extension
calls for a mixture of experts over two ranks, and which arguments it takes (`stock_calls/`).

Each release runs with the torch and torch_npu that it is built for, all three as they are on PyPI,
in an environment of its own in the cache: some 6 GB and minutes for each, so that no test does it.
Read the difference before it is committed.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.npu.fakecann import wheel
from tests.npu.fakecann.build import build, environment
from tests.npu.fakecann.calls import read_calls

FOLDER = Path(__file__).parent / "stock_calls"
OPERATORS = ("dispatch_ffn_combine", "dispatch_gmm_combine_decode")
RANKS = 2
_ROOT = Path(__file__).parents[2]
_INSIDE, _RANK = "--inside", "--rank"
_KERNELS = ("DispatchFFNCombine", "DispatchGmmCombineDecode")


@dataclass(frozen=True, slots=True)
class Stack:
    """A release and what its METADATA wants."""

    torch: str
    torch_npu: str
    numpy: str


STACKS = {
    "0.18.0": Stack("2.9.0", "2.9.0", "numpy<2"),
    "0.23.0": Stack("2.10.0", "2.10.0.post4", "numpy"),
}


def main(arguments: list[str]) -> int:
    """Record the releases named, or all."""
    if arguments[:1] == [_INSIDE]:
        return _record(arguments[1], Path(arguments[2]))
    if arguments[:1] == [_RANK]:
        return _call(int(arguments[1]))
    for release in arguments or STACKS:
        folder = installed(release)
        python = folder / "python" / "bin" / "python"
        inside = [python, "-m", "tests.npu.stock_extension", _INSIDE, release, folder / "site"]
        subprocess.run(inside, cwd=_ROOT, check=True)
    return 0


def installed(release: str) -> Path:
    """The folder of a release's environment: `python`, and the wheels unpacked in `site`."""
    folder, stack = wheel.cache() / f"vllm_ascend-{release}", STACKS[release]
    python, site = folder / "python", folder / "site"
    if not (folder / "whole").exists():
        pip = [python / "bin" / "pip", "install", "--quiet"]
        npu = (f"torch_npu=={stack.torch_npu}", f"vllm_ascend=={release}")
        subprocess.run([sys.executable, "-m", "venv", python], check=True)
        subprocess.run([*pip, f"torch=={stack.torch}", stack.numpy, "pyyaml"], check=True)
        subprocess.run([*pip, "--no-deps", "--target", site, *npu], check=True)
        (folder / "whole").touch()
    return folder


def _record(release: str, site: Path) -> int:
    """Run by the release's own Python: have all ranks call, and write down what came."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "calls"
        env = environment(build(site), devices=RANKS, log=log)
        env |= {"SITE": str(site), "WORLD_SIZE": str(RANKS)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611"}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.npu.stock_extension", _RANK, str(rank)],
                env={**env, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        said = [rank.communicate(timeout=300)[0] for rank in ranks]
        calls = sorted(call.text for call in read_calls(log) if _is_of_experts(call.text))
    schemas = [line for line in said[0].splitlines() if line.startswith("_C_ascend::")]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{release}.txt").write_text("\n".join([*schemas, *calls]) + "\n")
    print(f"{release}: {len(schemas)} schemas, {len(calls)} calls of {RANKS} ranks")
    return max(abs(rank.returncode) for rank in ranks)


def _is_of_experts(call: str) -> bool:
    return any(kernel in call for kernel in _KERNELS)


def _call(rank: int) -> int:
    """One rank: each operator once, with weights of INT8, and the fused one with BF16 besides."""
    import torch
    import torch.distributed as dist
    import torch_npu  # noqa: F401  (registers the device)

    extension = next((Path(os.environ["SITE"]) / "vllm_ascend").glob("vllm_ascend_C*.so"))
    # As the package does, whose import wants vllm.
    ctypes.CDLL(str(extension.with_name("libvllm_ascend_kernels.so")), ctypes.RTLD_GLOBAL)
    torch.ops.load_library(str(extension))
    from collector.comm.moe.fused import open_fused
    from collector.comm.moe.moe_plan import MoeCase
    from collector.expert_call import ExpertCall

    device = torch.device("npu", rank)
    torch.npu.set_device(device)  # type: ignore[attr-defined]
    dist.init_process_group("hccl")
    dist.all_reduce(torch.zeros(1, device=device))  # the group has its name from then on
    for name in OPERATORS:
        print(*torch._C._jit_get_schemas_for_operator(f"_C_ascend::{name}"))
        prepare = open_fused(name)
        for is_int8 in (True, False) if name == OPERATORS[0] else (True,):
            call = ExpertCall(8, 64, 32, 4, 2, RANKS, is_int8=is_int8)
            prepare(MoeCase(call, 7), rank, str(device))()
    torch.npu.synchronize()  # type: ignore[attr-defined]
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
