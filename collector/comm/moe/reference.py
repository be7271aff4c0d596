"""Reference of DispatchFFNCombine in plain torch: over ranks, and in one process for comparison.

Over ranks it runs the steps of the fused kernel: rows to the ranks of their experts
(all_to_all_v), gate_up, SwiGLU and down of each expert's rows, rows back, their weighted sum. INT8
is W8A8 with one scale per token: a token is quantised once before it is sent, the intermediate
values once per expert. INT4 weights (W4A8) are the same with numbers of -8 to 7. Products are
exact, so that both results agree to the last bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from collector.comm.moe.routing import Routing
from collector.model.vocabulary import dtype_of
from collector.ops.parts.int8 import int8_product, quantise_rows
from collector.ranks.experts import ExpertCall
from collector.ranks.gangs import RoutedCall


@dataclass(frozen=True, slots=True)
class Exchange:
    """The destinations of the rows of this rank's tokens, and the origins of the rows that its
    experts get. `order`: the choice (of T*K, by tokens) of each row that it sends, sorted by
    expert. `sends` and `gets` are the numbers of rows to and from each rank, `rows` (L) those of
    each expert of this rank, and `by_rank` (ranks, L) the same for each rank of origin."""

    order: torch.Tensor
    sends: list[int]
    gets: list[int]
    by_rank: torch.Tensor
    group: "dist.ProcessGroup"

    @property
    def rows(self) -> torch.Tensor:
        return self.by_rank.sum(0)

    def by_expert(self) -> torch.Tensor:
        """Return the indices that sort the result of `send` from rank and expert to expert and
        rank; rows of one rank keep their order."""
        ranks, local = self.by_rank.shape
        numbers = torch.arange(local, device=self.by_rank.device).repeat(ranks)
        return numbers.repeat_interleave(self.by_rank.flatten()).argsort(stable=True)

    def send(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows that this rank's experts get from each rank's rows in their `order`."""
        return exchanged(rows, self.gets, self.sends, self.group)

    def send_back(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the results of this rank's rows, in their `order`: the reverse of `send`."""
        return exchanged(rows, self.sends, self.gets, self.group)


def exchange_of(chosen: torch.Tensor, experts: int, group: "dist.ProcessGroup") -> Exchange:
    """Return the exchange for the experts (T,K) that this rank's tokens have chosen, of `experts`
    that are spread evenly; all ranks must call it together."""
    ranks, flat = dist.get_world_size(group), chosen.flatten()
    ours = torch.bincount(flat, minlength=experts).view(ranks, -1)
    theirs = torch.empty_like(ours)
    dist.all_to_all_single(theirs, ours, group=group)
    order = flat.argsort(stable=True)
    return Exchange(order, ours.sum(1).tolist(), theirs.sum(1).tolist(), theirs, group)


def exchanged(
    rows: torch.Tensor, gets: list[int], sends: list[int], group: "dist.ProcessGroup"
) -> torch.Tensor:
    """Return the rows that this rank gets, by rank; it sends `sends` rows to each rank in turn."""
    got = rows.new_empty((sum(gets), *rows.shape[1:]))
    dist.all_to_all_single(got, rows.contiguous(), gets, sends, group=group)
    return got


_TOKENS, _EXPERTS, _WEIGHTS = range(3)  # streams of random numbers
_STREAM_BITS = 24  # of a rank's or an expert's number
_WITHIN = {4: 8, 8: 16}  # bound of the weights by their bits; 16 as in vLLM-Ascend's own tests


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The weights of some experts: `gate_up` (L,H,2I), gate first, `down` (L,I,H), and FLOAT scales
    of their columns (L,2I) and (L,H), which only INT8 and INT4 weights use."""

    gate_up: torch.Tensor
    down: torch.Tensor
    gate_up_scale: torch.Tensor
    down_scale: torch.Tensor


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one rank: `x` (M,H), the experts (M,K) of each and the FLOAT weights (M,K) of
    their results."""

    x: torch.Tensor
    experts: torch.Tensor
    weights: torch.Tensor


def make_experts(call: ExpertCall, seed: int, numbers: Sequence[int], device: str) -> ExpertWeights:
    """Create the experts of these numbers: a number has the same weights in every process."""
    made = [_make_expert(call, _random(seed, _EXPERTS, number)) for number in numbers]
    return ExpertWeights(*(torch.stack(parts).to(device) for parts in zip(*made, strict=True)))


def make_tokens(call: RoutedCall, seed: int, rank: int, routing: Routing, device: str) -> Tokens:
    """Create the tokens of a rank: the same in every process."""
    x = torch.randn((call.tokens, call.hidden), generator=_random(seed, _TOKENS, rank))
    weights = torch.rand((call.tokens, call.choices), generator=_random(seed, _WEIGHTS, rank))
    experts = torch.from_numpy(routing.experts[rank]).long()
    return Tokens(x.to(device, _dtype(call)), experts.to(device), weights.to(device))


def expert_outputs(
    call: ExpertCall, tokens: Tokens, experts: ExpertWeights, group: "dist.ProcessGroup"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's outputs, computed with the ranks of `group`: the tokens (M,H), and the
    number of rows of each of its experts (L)."""
    exchange = exchange_of(tokens.experts, call.experts, group)
    token = exchange.order // call.choices
    sent = [exchange.send(part[token]) for part in _sent(call, tokens.x)]
    results = tokens.x.new_empty((sum(exchange.gets), call.hidden))
    for at, places in enumerate(exchange.by_expert().split(exchange.rows.tolist())):
        results[places] = _one_expert(call, [part[places] for part in sent], experts, at)
    back = tokens.x.new_empty((len(exchange.order), call.hidden))
    back[exchange.order] = exchange.send_back(results)
    return weighed(back.view(call.tokens, call.choices, -1), tokens.weights), exchange.rows


def reference_alone(
    call: ExpertCall,
    seed: int,
    rank: int,
    routing: Routing,
    tick: Callable[[int], object] = lambda expert: None,
) -> torch.Tensor:
    """Return the same output of a rank, computed in one process on the host: expert by expert,
    without an exchange. `tick` gets each expert: creating the weights of hundreds takes minutes."""
    tokens = make_tokens(call, seed, rank, routing, "cpu")
    sent = _sent(call, tokens.x)
    results = tokens.x.new_zeros((call.tokens, call.choices, call.hidden))
    for number in tokens.experts.unique().tolist():
        tick(number)
        token, choice = (tokens.experts == number).nonzero(as_tuple=True)
        expert = make_experts(call, seed, [number], "cpu")
        results[token, choice] = _one_expert(call, [part[token] for part in sent], expert, 0)
    return weighed(results, tokens.weights)


def outputs_agree(got: torch.Tensor, expected: torch.Tensor, *, is_exact: bool) -> bool:
    """Return whether two outputs agree: the reference of INT8 to the bit, others within some
    roundings of the dtype, since a product depends on the number of rows, and a kernel's result on
    its order."""
    if is_exact:
        return bool(torch.equal(got, expected))
    rounding = torch.finfo(expected.dtype).eps
    largest = float(expected.float().abs().max()) if expected.numel() else 0.0
    return bool(
        torch.allclose(
            got.float(), expected.float(), rtol=4 * rounding, atol=2 * rounding * largest
        )
    )


def _random(seed: int, stream: int, number: int) -> torch.Generator:
    return torch.Generator().manual_seed(((3 * seed + stream) << _STREAM_BITS) + number)


def _dtype(call: RoutedCall) -> torch.dtype:
    known = dtype_of(call.dtype)
    assert known is not None
    found: torch.dtype = getattr(torch, known.torch_name)
    return found


def _make_expert(call: ExpertCall, random: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Return weights and scales that give results about as large as the inputs."""
    made = []
    for shape in ((call.hidden, 2 * call.intermediate), (call.intermediate, call.hidden)):
        scale = (torch.rand(shape[1], generator=random) + 0.5) / shape[0] ** 0.5
        if call.is_int8:
            most = _WITHIN[call.weight_bits]
            weight = torch.randint(-most, most, shape, dtype=torch.int8, generator=random)
            made.append((weight, scale / most))
        else:
            weight = (torch.randn(shape, generator=random) * scale).to(_dtype(call))
            made.append((weight, torch.ones_like(scale)))
    (gate_up, gate_up_scale), (down, down_scale) = made
    return gate_up, down, gate_up_scale, down_scale


def _sent(call: ExpertCall, x: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that are sent for each token: itself, or its INT8 values and scale."""
    return list(quantise_rows(torch, x.float())) if call.is_int8 else [x]


def _one_expert(
    call: ExpertCall, sent: list[torch.Tensor], experts: ExpertWeights, at: int
) -> torch.Tensor:
    """Return the rows (n,H) of one expert after gate_up, SwiGLU and down."""
    if call.is_int8:
        values, scale = sent
        wide = _product(values, scale, experts.gate_up[at], experts.gate_up_scale[at])
        middle, scale = quantise_rows(torch, _swiglu(wide))
        return _product(middle, scale, experts.down[at], experts.down_scale[at]).to(_dtype(call))
    (rows,) = sent
    wide = rows.float() @ experts.gate_up[at].float()
    rounded = _swiglu(wide).to(_dtype(call)).float()
    return (rounded @ experts.down[at].float()).to(_dtype(call))


def _product(
    values: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor, of_columns: torch.Tensor
) -> torch.Tensor:
    """Multiply INT8 rows with a scale per row by an INT8 weight with a scale per column: FLOAT."""
    exact: Any = int8_product(torch, values, weight)
    wide: torch.Tensor = exact.float() * of_columns * scale.unsqueeze(-1)
    return wide


def _swiglu(wide: torch.Tensor) -> torch.Tensor:
    gate, up = wide.chunk(2, -1)
    return torch.nn.functional.silu(gate.contiguous()) * up


def weighed(results: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum (T,H) of the results (T,K,H) over choices, added one after the other:
    a reduction may add them in any order."""
    total = torch.zeros(results.shape[0], results.shape[2], device=results.device)
    for choice in range(results.shape[1]):
        total += results[:, choice].float() * weights[:, choice, None]
    return total.to(results.dtype)
