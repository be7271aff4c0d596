"""Options of commands that start ranks, named as those of torchrun, and how they run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from collector.codec.errors import BadInput
from collector.comm.bench_plan import Mode
from jobs.cli.options import check_backend
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.comm.gang import Rendezvous, Tick


PatienceOption = Annotated[
    float, typer.Option(help="seconds without progress of any rank after which the benchmark ends")
]


@dataclass(frozen=True, slots=True)
class NodesOptions:
    """The nodes of a benchmark; each of them starts the same command."""

    nnodes: Annotated[
        int, typer.Option(min=1, help="number of nodes; start this command on each")
    ] = 1
    node_rank: Annotated[int, typer.Option(min=0, help="index of this node")] = 0
    master_addr: Annotated[str, typer.Option(help="address of node 0")] = "127.0.0.1"
    master_port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="port of node 0; 0 for a free one on a single node"),
    ] = 0


@dataclass(frozen=True, slots=True)
class ExpertOptions:
    """The shape of DispatchFFNCombine, and the ranks that run it."""

    ep_size: Annotated[int, typer.Option(min=1, help="number of ranks")] = 16
    hidden: Annotated[int, typer.Option(min=1, help="hidden size of the tokens")] = 7168
    intermediate: Annotated[int, typer.Option(min=1, help="intermediate size of an expert")] = 2048
    weight_bits: Annotated[
        int, typer.Option(help="bits of a weight: 4, 8, or 16 for the dtype of the tokens")
    ] = 8
    dtype: Annotated[str, typer.Option(help="dtype of the tokens: DT_BF16 or FLOAT16")] = "DT_BF16"
    backend: Annotated[
        str,
        typer.Option(
            help="backend of the ranks: npu (the fused kernel), cuda or cpu (its reference)"
        ),
    ] = "npu"
    nproc_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="number of ranks on this node  [default: --ep-size / --nnodes]"),
    ] = None

    def meeting(self, nodes: NodesOptions) -> Rendezvous:
        """Return where the ranks of these nodes meet. Raises BadInput for an unknown backend."""
        from collector.comm.gang import rendezvous_of

        check_backend(self.backend)
        return rendezvous_of(self.ep_size, self.nproc_per_node, *astuple(nodes))


# Ranks run with a progress view; their results are kept even if they fail.

BY_CASE = "auto"
_Found = TypeVar("_Found")


def requested_mode(word: str) -> Mode | None:
    """Return the timing mode of an option, or None for the default of each case.

    Raises BadInput for an unknown mode.
    """
    if word not in (BY_CASE, *Mode):
        raise BadInput(f"--bench-mode: expected one of {BY_CASE}, {', '.join(Mode)}, got {word!r}")
    return None if word == BY_CASE else Mode(word)


def run_ranks(
    start: Callable[[Path, Tick], None], total: int, found_in: Callable[[Path], _Found]
) -> tuple[_Found, str]:
    """Run ranks in a temporary folder; return their results and why they ended early, or "".

    `start` measures in the folder and reports how many of `total` are done.
    """
    from collector.codec.scratch import scratch_folder
    from collector.comm.gang import GangFailed
    from jobs.cli.progress_view import view_for

    failure = ""
    with scratch_folder("ranks") as folder:
        with view_for(sys.stderr.isatty()) as view:
            try:
                start(folder, lambda done: view.measure(done, max(done, total)))
            except GangFailed as error:
                failure = str(error)
        return found_in(folder), failure


def ended(failure: str, *, is_whole: bool = True) -> int:
    """Print the failure of the ranks, if any, and return the exit code of the command."""
    if failure:
        say(f"opmeter: {failure}", err=True)
    return int(bool(failure) or not is_whole)


def say_buffsize(backend: str, required_mb: int) -> None:
    """Print the environment variables that set the size of the communication buffers."""
    from collector.comm.moe.moe_plan import buffsize_settings

    for name, value in buffsize_settings(backend, required_mb).items():
        say(f"set {name}={value}, which the largest call requires")
