"""Rows of tokens sent to the ranks of their experts, and back, over collectives of any backend."""

from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Exchange:
    """Where the rows of this rank's tokens go, and whence those come that its experts get. `order`:
    which choice (of T*K, by tokens) each row is that it sends, sorted by expert. `sends` and
    `gets` are rows to and from each rank, `rows` (L) those of each expert of this rank, and
    `by_rank` (ranks, L) tells them apart by where they come from."""

    order: torch.Tensor
    sends: list[int]
    gets: list[int]
    by_rank: torch.Tensor
    group: "dist.ProcessGroup"

    @property
    def rows(self) -> torch.Tensor:
        return self.by_rank.sum(0)

    def by_expert(self) -> torch.Tensor:
        """Of what `there` gives, by rank and expert, the places by expert and rank; rows of one
        rank keep their order."""
        ranks, local = self.by_rank.shape
        numbers = torch.arange(local, device=self.by_rank.device).repeat(ranks)
        return numbers.repeat_interleave(self.by_rank.flatten()).argsort(stable=True)

    def there(self, rows: torch.Tensor) -> torch.Tensor:
        """What this rank's experts get, of each rank's rows in their `order`."""
        return exchanged(rows, self.gets, self.sends, self.group)

    def back(self, rows: torch.Tensor) -> torch.Tensor:
        """The other way: what has become of this rank's rows, in their `order`."""
        return exchanged(rows, self.sends, self.gets, self.group)


def exchange_of(chosen: torch.Tensor, experts: int, group: "dist.ProcessGroup") -> Exchange:
    """The exchange for the experts (T,K) that this rank's tokens have chosen, of `experts` that are
    spread evenly; all ranks come together for it."""
    ranks, flat = dist.get_world_size(group), chosen.flatten()
    ours = torch.bincount(flat, minlength=experts).view(ranks, -1)
    theirs = torch.empty_like(ours)
    dist.all_to_all_single(theirs, ours, group=group)
    order = flat.argsort(stable=True)
    return Exchange(order, ours.sum(1).tolist(), theirs.sum(1).tolist(), theirs, group)


def exchanged(
    rows: torch.Tensor, gets: list[int], sends: list[int], group: "dist.ProcessGroup"
) -> torch.Tensor:
    """What this rank gets, by ranks, where it sends so many of its rows to each of them in turn."""
    got = rows.new_empty((sum(gets), *rows.shape[1:]))
    dist.all_to_all_single(got, rows.contiguous(), gets, sends, group=group)
    return got
