"""What a campaign assumes of values that no row of a profile holds."""

from dataclasses import dataclass

from jobs.campaign.document import Entry


@dataclass(frozen=True, slots=True)
class RuntimeValues:
    """`kv_lengths`: how many keys each request of a paged cache has, where a row does not say; a
    row becomes one case for each."""

    kv_lengths: tuple[int, ...] = ()


def read_runtime(entry: Entry) -> RuntimeValues:
    """The values of a campaign file's `runtime`. BadInput, with the line, for anything else."""
    found = entry.fields(("kv_length",), required=("kv_length",))["kv_length"]
    lengths = tuple(item.integer(1) for item in found.items())
    if not lengths:
        raise found.refusal("at least one length is wanted")
    if len(set(lengths)) < len(lengths):
        raise found.refusal("a length is listed twice")
    return RuntimeValues(lengths)
