"""Reference of MoeDistributeDispatchV2 and MoeDistributeCombineV2 in plain torch: over ranks, and
the expected result in one process.

A dispatch gives a rank the rows of its experts, by expert, then by the rank that sent them, then by
token; INT8 has one scale per row. Three numbers record the origin of each row: rank, token, choice.
The outputs have space for as many rows as a rank could get. A combine uses those numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.distributed as dist

from collector.comm.moe.reference import Tokens, exchange_of, exchanged, make_tokens, weighed
from collector.comm.moe.routing import Routing
from collector.ops.parts.int8 import quantise_rows
from collector.ranks.distribution import COMBINE, DISPATCH, INFO, MASK, TP_COUNTS, DistributeCall

_ORIGIN = 3  # numbers of a row's origin


class Dispatched(NamedTuple):
    """The seven outputs of a dispatch, in the kernel's order."""

    rows: torch.Tensor
    scales: torch.Tensor
    info: torch.Tensor
    counts: torch.Tensor
    ends: torch.Tensor
    tp_counts: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True, slots=True)
class Expected:
    """The rows (n,H) that a rank gets, with FLOAT scales (n) and weights (n), their origins (n,3),
    and the number of rows for each of its experts from each rank (L, ranks)."""

    rows: torch.Tensor
    scales: torch.Tensor
    origins: torch.Tensor
    weights: torch.Tensor
    counts: torch.Tensor


def dispatched(
    call: DistributeCall, tokens: Tokens, rank: int, group: "dist.ProcessGroup"
) -> Dispatched:
    """Return this rank's outputs, computed with the ranks of `group`."""
    exchange = exchange_of(tokens.experts, call.experts, group)
    by_expert, token = exchange.by_expert(), exchange.order // call.choices
    choice = exchange.order % call.choices
    origins = torch.stack((torch.full_like(token, rank), token, choice), -1)
    rows, scales = _quantised(call, tokens.x)

    def got(part: torch.Tensor) -> torch.Tensor:
        return exchange.send(part)[by_expert]

    ends = exchange.by_rank.t().flatten().cumsum(0)
    return Dispatched(
        _padded(got(rows[token]), call.capacity_rows),
        _padded(got(scales[token]), call.capacity_rows),
        _padded(got(origins).to(torch.int32).flatten(), call.capacity_rows * INFO),
        exchange.rows,
        ends.to(torch.int32),
        ends[-1:].to(torch.int32) if TP_COUNTS in call.optional else ends.new_empty(0),
        _padded(got(tokens.weights.flatten()[exchange.order]), call.capacity_rows),
    )


def combine_tokens(
    call: DistributeCall,
    results: torch.Tensor,
    of: Dispatched,
    tokens: Tokens,
    group: "dist.ProcessGroup",
) -> torch.Tensor:
    """Return the tokens (T,H) of this rank from the results that the ranks of `group` computed for
    the rows of a dispatch."""
    count = int(of.ends[-1])
    rank, token, choice = of.info[: _ORIGIN * count].long().view(-1, _ORIGIN).unbind(-1)
    order = rank.argsort(stable=True)
    gives = torch.bincount(rank, minlength=call.ep_size)
    gets = torch.empty_like(gives)
    dist.all_to_all_single(gets, gives, group=group)

    def back(part: torch.Tensor) -> torch.Tensor:
        return exchanged(part[order], gets.tolist(), gives.tolist(), group)

    place = back(token * call.choices + choice)
    whole = results.new_zeros((call.tokens * call.choices, call.hidden))
    whole[place] = back(results[:count])
    return weighed(whole.view(call.tokens, call.choices, -1), tokens.weights)


def expected(call: DistributeCall, seed: int, rank: int, routing: Routing) -> Expected:
    """Return the rows that a rank gets, computed in one process on the host from all tokens."""
    parts = list(_to_rank(call, seed, rank, routing))
    rows, scales, origins, weights = (torch.cat(part) for part in zip(*parts, strict=True))
    counts = torch.tensor([len(part[0]) for part in parts]).view(-1, call.ep_size)
    return Expected(rows, scales, origins, weights, counts)


def _to_rank(
    call: DistributeCall, seed: int, rank: int, routing: Routing
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield rows, scales, origins and weights for each expert of a rank and each sending rank."""
    every = [make_tokens(call, seed, of, routing, "cpu") for of in range(call.ep_size)]
    sent = [_quantised(call, of.x) for of in every]
    for expert in range(rank * call.local_experts, (rank + 1) * call.local_experts):
        for number, tokens in enumerate(every):
            token, choice = (tokens.experts == expert).nonzero(as_tuple=True)
            origins = torch.stack((torch.full_like(token, number), token, choice), -1)
            rows, scales = sent[number]
            yield rows[token], scales[token], origins, tokens.weights[token, choice]


def is_as_expected(got: Dispatched, expected: Expected) -> bool:
    """Return whether a dispatch of the reference equals the expected result, to the last bit."""
    count = len(expected.rows)
    origins = got.info[: _ORIGIN * count].cpu().view(-1, _ORIGIN)
    pairs = (
        (got.rows[:count], expected.rows),
        (got.scales[:count], expected.scales),
        (got.weights[:count], expected.weights),
        (origins.long(), expected.origins),
        (got.counts, expected.counts.sum(1)),
        (got.ends.long(), expected.counts.flatten().cumsum(0)),
    )
    return all(torch.equal(one.cpu(), other) for one, other in pairs)


def has_expected_rows(got: Dispatched, expected: Expected) -> bool:
    """Return whether a kernel gave each expert the expected rows, in any order: the columns of each
    expert's block, each sorted, are the same. INT8 may be rounded by one."""
    if not torch.equal(got.counts.cpu().long(), expected.counts.sum(1)):
        return False
    if not torch.equal(got.ends.cpu().long(), expected.counts.flatten().cumsum(0)):
        return False
    count, is_int8 = len(expected.rows), expected.rows.dtype == torch.int8
    received, rows = got.rows[:count].cpu().float(), expected.rows.float()
    if is_int8:
        received *= got.scales[:count].cpu().unsqueeze(-1)
        rows *= expected.scales.unsqueeze(-1)
    step = float(expected.scales.max()) if is_int8 and count else 0.0
    sizes = expected.counts.sum(1).tolist()
    blocks = zip(received.split(sizes), rows.split(sizes), strict=True)
    return all(
        torch.allclose(one.sort(0).values, other.sort(0).values, rtol=0.0, atol=1.01 * step)
        for one, other in blocks
    )


def expert_results(
    call: DistributeCall, rank: int, routing: Routing, of: Dispatched
) -> torch.Tensor:
    """Return the experts' results for a dispatch's rows (A,H): each expert multiplies its rows by
    its own power of two, which no dtype rounds. The number of rows of each expert comes from the
    routing, not from the device."""
    first = rank * call.local_experts
    mine = range(first, first + call.local_experts)
    factors = torch.tensor([_factor(expert) for expert in mine])
    loads = torch.from_numpy(routing.loads[first : first + call.local_experts])
    of_rows = factors.repeat_interleave(loads).to(of.rows.device, of.rows.dtype)
    results = of.rows.clone()
    results[: len(of_rows)] *= of_rows.unsqueeze(-1)
    return results


def expected_tokens(call: DistributeCall, seed: int, rank: int, routing: Routing) -> torch.Tensor:
    """Return the tokens (T,H) that a combine of such rows gives, computed in one process."""
    tokens = make_tokens(call, seed, rank, routing, "cpu")
    factors = torch.tensor([_factor(expert) for expert in range(call.experts)])
    results = tokens.x.unsqueeze(1) * factors[tokens.experts].to(tokens.x.dtype).unsqueeze(-1)
    return weighed(results, tokens.weights)


def counterpart(call: DistributeCall) -> DistributeCall:
    """Return the dispatch whose rows a combine sends back, or the combine of a dispatch's rows."""
    both = tuple(name for name in call.optional if name in (MASK, TP_COUNTS))
    kernel = COMBINE if call.sends else DISPATCH
    return replace(call, kernel=kernel, is_int8=False, optional=both)


def _factor(expert: int) -> float:
    return float(2 ** (expert % 3))


def _quantised(call: DistributeCall, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values that are sent for tokens, and a FLOAT scale for each token."""
    if call.is_int8:
        values, scales = quantise_rows(torch, x.float())
        return values, scales
    return x, torch.ones(len(x), device=x.device)


def _padded(rows: torch.Tensor, length: int) -> torch.Tensor:
    """Return the rows, padded with zeros to `length` rows."""
    whole = rows.new_zeros((length, *rows.shape[1:]))
    whole[: len(rows)] = rows
    return whole
