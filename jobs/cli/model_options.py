"""Options that name what is looked up in the place of a campaign: a profile, or a model with its
serving."""

from pathlib import Path
from typing import Annotated

import typer

ProfileOption = Annotated[Path | None, typer.Option(help="instead of a campaign: a profile")]
ModelOption = Annotated[
    str | None, typer.Option(help="or a name of `opmeter model list`, or a config.json")
]
LayoutOption = Annotated[str, typer.Option(help="of the model: tp=8,sequence_split,...")]
ConcurrencyOption = Annotated[
    list[int] | None, typer.Option(help="requests that it serves at once  [1, 8, 32]", min=1)
]
InputOption = Annotated[
    int | None, typer.Option("--input", help="tokens of a prompt  [4096]", min=1)
]
OutputOption = Annotated[
    int | None, typer.Option("--output", help="tokens of an answer  [512]", min=1)
]
MaxBatchedTokensOption = Annotated[int | None, typer.Option(help="in one pass  [8192]", min=1)]
GraphSizesOption = Annotated[
    list[int] | None, typer.Option(help="a decode is padded to the next of them", min=1)
]
PhaseOption = Annotated[
    str | None, typer.Option(help="prefill or decode, of a deployment of one phase")
]
MixedOption = Annotated[
    bool, typer.Option("--mixed", help="prompts pass beside the answers of others")
]
PredictedTokensOption = Annotated[
    int | None, typer.Option(help="after each, by the model's layer for it (MTP)", min=0)
]
SkewOption = Annotated[
    int | None, typer.Option(help="percent: answers have more and fewer keys", min=0, max=99)
]
ImbalanceOption = Annotated[
    int | None, typer.Option(help="percent: experts have more and fewer rows", min=0, max=99)
]
ReleaseOption = Annotated[str | None, typer.Option(help="the serving stack  [vllm-ascend-0.18]")]
