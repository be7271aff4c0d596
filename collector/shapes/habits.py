"""What a release does by sizes of a pass, which names of its patterns follow."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Habits:
    """Numbers of tokens, and switches as 0 or 1.

    dense_split_above_tokens   a dense model's pass with more is split, where the layout asks for it
    most_dispatched_tokens     in a pass of at most so many, experts apart get them by a dispatch
    splits_sparse_attention    whether sparse attention is split where a group splits its tokens
    most_mlapo_tokens          passes of at most so many have one kernel before sparse attention
    """

    dense_split_above_tokens: int
    most_dispatched_tokens: int
    splits_sparse_attention: int
    most_mlapo_tokens: int
