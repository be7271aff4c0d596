"""The places of tokens in a paged cache, from positions and tables of pages.

A Triton kernel of vLLM that vLLM-Ascend 0.23 launches once a step, by a method of its tables. The
method gets an object here that has what it reads of a worker's tables.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from collector.model.case import Case
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.ops import rules
from collector.ops.launching import arguments_at
from collector.ops.signature import parse_signature
from collector.ops.slots import output_slot
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

_READ = parse_signature(
    "query_start_loc integer[bounds], positions integer[t], block_table integer[rows, width]"
    " -> slot_mapping integer[places]! where 1 < bounds <= rows + 1, bounds - 1 <= t <= places"
)
_PADDING = -1
_PAGE_SIZE = RUNTIME_PREFIX + "block_size"
_USUAL_PAGE = "128"  # of vLLM-Ascend, unless a model needs other pages
_LARGEST_PAGE = 1 << 16


def _page(case: Case) -> int | None:
    """Return the tokens of a page; None if the row names no number of them."""
    text = case.attribute(_PAGE_SIZE) or _USUAL_PAGE
    is_number = text.isascii() and text.isdecimal() and len(text) < 6
    return int(text) if is_number and 0 < int(text) <= _LARGEST_PAGE else None


def _runtime(case: Case) -> Mapping[str, str]:
    return {_PAGE_SIZE: case.attribute(_PAGE_SIZE) or _USUAL_PAGE}


def _build(case: Case, make: TensorMaker) -> Call:
    """Build requests of equal numbers of new tokens, at the ends of their pages."""
    page = rules.accepted(_page(case))
    starts, positions, table = case.inputs or ()
    sizes = _READ.sizes(case)
    requests, width = sizes["bounds"] - 1, sizes["width"]
    edges = [sizes["t"] * i // requests for i in range(requests + 1)]
    last = [width * page - (edges[i + 1] - edges[i]) for i in range(requests)]
    where = [last[i] + n for i in range(requests) for n in range(edges[i + 1] - edges[i])]
    return Call(
        make.tensor(edges, starts.dtype),
        make.tensor(where, positions.dtype),
        make.permutation(sizes["rows"] * width, table.dtype).view(-1, width),
        make.full((sizes["places"],), rules.accepted(output_slot(case)).dtype, _PADDING),
        page,
    )


def _reference(torch: Any, starts: Any, positions: Any, table: Any, slots: Any, page: int) -> Any:
    count = len(positions)
    request = torch.searchsorted(
        starts.long(), torch.arange(count, device=starts.device), right=True
    )
    pages = table[request - 1, positions // page].long()
    slots[:count] = (pages * page + positions % page).to(slots.dtype)
    slots[count:] = _PADDING
    return slots


def _launch(method: Any, starts: Any, positions: Any, table: Any, slots: Any, page: int) -> Any:
    tables = SimpleNamespace(
        block_table=SimpleNamespace(gpu=table),
        slot_mapping=SimpleNamespace(gpu=slots),
        block_size=page,
        max_num_batched_tokens=len(slots),
        cp_kv_cache_interleave_size=1,
        **dict.fromkeys(("pcp_world_size", "dcp_world_size"), 1),
        **dict.fromkeys(("pcp_rank", "dcp_rank"), 0),
    )
    method(tables, len(starts) - 1, starts, positions)
    return slots


def _fits(case: Case) -> bool:
    sizes, page = _READ.sizes(case), rules.accepted(_page(case))
    return sizes["t"] <= (sizes["bounds"] - 1) * sizes["width"] * page


def _traffic(case: Case) -> int:
    """Return the bytes of starts and positions, a page for each token, and all places."""
    starts, positions, table = case.inputs or ()
    width = rules.accepted(table.known_dtype).bytes_of(1)
    pages = width * positions.numel
    written = rules.accepted(output_slot(case)).size_bytes
    return starts.size_bytes + positions.size_bytes + pages + written


SLOT_MAPPING = OpSpec(
    kernel="_compute_slot_mapping_kernel",
    call="vllm_ascend.worker.block_table.BlockTable.compute_slot_mapping",
    assumes="as many new tokens for each request, at the ends of its pages, which have 128 tokens "
    "unless Runtime block_size names another number",
    signature=_READ.text,
    reference=_reference,
    build=_build,
    traffic=_traffic,
    moves_data=True,
    npu=NpuCall(run=_launch, needs=frozenset({Need.TRITON})),
    runtime=_runtime,
    constraints=(
        rules.reads(f"expected a number of tokens in {_PAGE_SIZE}", _page),
        Constraint("expected a table that holds the positions", _fits),
    ),
    launched_by={
        "triton._compute_slot_mapping_kernel": arguments_at(
            query_start_loc=2, positions=3, block_table=4, outputs=7, settings={"block_size": 6}
        )
    },
)
