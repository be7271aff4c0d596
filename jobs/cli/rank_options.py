"""Options of verbs that start ranks: how many, and where they meet, as torchrun says it."""

from typing import Annotated

import typer

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
