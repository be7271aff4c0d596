"""Options of verbs that start ranks: how many, and where they meet, as torchrun says it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from collector.codec.errors import BadInput
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.comm.bench_plan import Mode
    from collector.comm.gang import Tick


BackendOption = Annotated[str, typer.Option(help="npu (hccl), cuda (nccl) or cpu (gloo)")]
ExpertBackendOption = Annotated[
    str, typer.Option(help="npu (the fused kernel), cuda or cpu (its reference)")
]
NprocPerNodeOption = Annotated[
    int | None, typer.Option(min=1, help="ranks on this node  [by the nodes]")
]
GroupRanksOption = Annotated[
    int | None, typer.Option(min=1, help="ranks on this node  [the largest group]")
]
NnodesOption = Annotated[int, typer.Option(min=1, help="nodes; start the same on each")]
NodeRankOption = Annotated[int, typer.Option(min=0, help="this node's number")]
MasterAddrOption = Annotated[str, typer.Option(help="the address of node 0")]
MasterPortOption = Annotated[int, typer.Option(min=0, max=65535, help="a port there")]
PatienceOption = Annotated[
    float, typer.Option(help="without a step of any rank, the bench is ended")
]
EpSizeOption = Annotated[int, typer.Option(min=1, help="ranks")]
HiddenOption = Annotated[int, typer.Option(min=1, help="size of a token")]
IntermediateOption = Annotated[int, typer.Option(min=1, help="size of an expert's middle")]
Int8Option = Annotated[bool, typer.Option(help="weights of INT8, else of the dtype")]
TokensDtypeOption = Annotated[str, typer.Option(help="of tokens: DT_BF16 or FLOAT16")]


# Ranks that measure while somebody looks on: what they found stays, even where they failed.

BY_CASE = "auto"
_Found = TypeVar("_Found")


def check_backend(backend: str) -> None:
    """Raise BadInput for a backend that is none."""
    from collector.model.stack import BACKENDS

    if backend not in BACKENDS:
        raise BadInput(f"--backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")


def asked_mode(word: str) -> Mode | None:
    """How calls shall be timed; None where each case says it. BadInput for no mode."""
    from collector.comm.bench_plan import Mode

    if word not in (BY_CASE, *Mode):
        raise BadInput(f"--bench-mode: expected one of {BY_CASE}, {', '.join(Mode)}, got {word!r}")
    return None if word == BY_CASE else Mode(word)


def run_ranks(
    start: Callable[[Path, Tick], None], total: int, found_in: Callable[[Path], _Found]
) -> tuple[_Found, str]:
    """What ranks left in a folder that is theirs alone, and why they ended before their time; empty
    where they did not. `start` has them measure there, telling how many of `total` are done."""
    from collector.comm.gang import GangFailed
    from jobs.cli.progress_view import view_for

    failure = ""
    with tempfile.TemporaryDirectory(prefix="opmeter-ranks-") as made:
        folder = Path(made)
        with view_for(sys.stderr.isatty()) as view:
            try:
                start(folder, lambda done: view.measure(done, max(done, total)))
            except GangFailed as error:
                failure = str(error)
        return found_in(folder), failure


def ended(failure: str, *, is_whole: bool = True) -> int:
    """The exit code of a verb whose ranks have ended, the reason being told."""
    if failure:
        say(f"opmeter: {failure}", err=True)
    return int(bool(failure) or not is_whole)


def say_buffsize(backend: str, wanted_mb: int) -> None:
    """What the ranks are started with for the buffers that their kernels write into."""
    from collector.comm.moe.moe_plan import buffsize_settings

    for name, value in buffsize_settings(backend, wanted_mb).items():
        say(f"{name}={value}, which the largest call asks for")
