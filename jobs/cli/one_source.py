"""What options name, as a campaign with one source: models and profiles that are looked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collector.errors import BadInput

if TYPE_CHECKING:
    from jobs.campaign.campaign_file import Campaign

_MOST_DEVICES = 1 << 16  # nothing is launched: as many as any message needs


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as options describe it; None and empty where they say nothing."""

    name: str
    layout: str = ""
    concurrency: tuple[int, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    batched_tokens: int | None = None
    graph_sizes: tuple[int, ...] = ()
    phase: str | None = None
    release: str | None = None
    mixed: bool = False
    predicted: int | None = None
    skew: int | None = None
    imbalance: int | None = None

    def source(self) -> dict[str, Any]:
        """The source of a campaign file that says the same."""
        from collector.shapes.layout import layout_of
        from collector.shapes.models import bundled_decoder

        said = layout_of(self.layout)
        is_folder = Path(self.name).is_dir() and bundled_decoder(self.name) is None
        serving = {
            "concurrency": list(self.concurrency or (1, 8, 32)),
            "input": self.input_tokens or 4096,
            "output": self.output_tokens or 512,
            "max_batched_tokens": self.batched_tokens,
            "graph_sizes": list(self.graph_sizes),
            "phase": self.phase,
            "mixed": self.mixed,
            "predicted_tokens": self.predicted,
            "skew": self.skew,
            "imbalance": self.imbalance,
        }
        layout = {
            **{name: getattr(said, name) for name in ("tp", "dp", "ep", "nz", "sequence_split")},
            "quantisation": str(said.quantisation),
            "experts": str(said.experts),
        }
        told = {
            "model": f"{self.name}/config.json" if is_folder else self.name,
            "layout": layout,
            "serving": {name: value for name, value in serving.items() if value},
        }
        return told | ({"release": self.release} if self.release else {})


def campaign_of(source: Mapping[str, Any], grid: str, device: str) -> Campaign:
    """The campaign with this source; with a `grid`, such as `48,8,2`, of its messages as well.
    Files are named from where the command runs. BadInput for a source that cannot be meant."""
    import yaml

    from collector.stack import backend_of
    from jobs.campaign.campaign_file import campaign_from_text

    sizes = [size.strip() for size in grid.split(",")] if grid else []
    if not all(size.isdecimal() for size in sizes):
        raise BadInput(f"--grid: expected numbers such as 48,8,2, got {grid!r}")
    messages = {"collectives": {"grid": [int(size) for size in sizes]}} if sizes else {}
    told = {
        "campaign": "options",
        "sources": [{**source, **messages}],
        "backend": backend_of(device),
        "devices": _MOST_DEVICES,
    }
    return campaign_from_text(yaml.safe_dump(told), path="the options", base=Path.cwd())
