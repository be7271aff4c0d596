"""Sizes of the experts of one rank, as models have them and deployments spread them."""

from collections.abc import Iterable

from collector.shapes.decoder import Decoder

_MOST_ON_A_RANK = 64


def experts_of(decoders: Iterable[Decoder]) -> tuple[tuple[int, int, int], ...]:
    """Triples (experts of a rank, hidden size, size of an expert), each once, in order: all powers
    of two of ranks that share a model's experts evenly, and leave a rank not too many."""
    found = {
        (decoder.experts // ranks, decoder.hidden, decoder.expert_intermediate)
        for decoder in decoders
        for ranks in (1 << power for power in range(decoder.experts.bit_length()))
        if decoder.experts % ranks == 0 and decoder.experts // ranks <= _MOST_ON_A_RANK
    }
    return tuple(sorted(found))
