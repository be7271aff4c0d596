"""What a version directory holds, for people and for catalogues of data sets.

`DATASET.md` and `croissant.json` (MLCommons Croissant 1.0, docs.mlcommons.org/croissant) follow
from the version directory alone, so that equal contents have equal bytes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.canonical import readable_json
from collector.codec.text import counted, half_width_text
from collector.database.columns import MEASUREMENTS, SHOWN, described_columns
from collector.database.manifest import FileEntry
from collector.database.query import measured_rows
from collector.model import keys
from collector.model.stack import Runtime, Stack

_UP = "../" * 6  # from the files of a version directory to the store
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
_DATA_TYPES = {
    "float": "sc:Float",
    "int": "sc:Integer",
    "bool": "sc:Boolean",
    "timestamp": "sc:DateTime",
}
_SESSION, _DEVICE = ("campaign", "shard", "attempt", "session"), ("node", "device_serial", "rank")
CARD_COLUMNS = frozenset({"started_at", "timed_by", *_SESSION, *_DEVICE})  # of measurements
_LICENCE = "not stated: it is that of who measured; opmeter itself is Apache-2.0"


@dataclass(frozen=True, slots=True)
class Card:
    """What is said of a version directory. `half_width` is the median half-width of its intervals,
    as a share of the mean; None without any."""

    path: str
    stack: Stack
    runtime: Runtime
    cases: int
    kernels: Mapping[str, int]  # number of cases by kernel type
    durations: int
    pooled: int
    imported: int
    half_width: float | None
    measurements: int
    sessions: int
    devices: int
    first: str
    last: str


def card_of(path: str, stack: Stack, tables: Sequence[pa.Table]) -> Card:
    """Return the card of a version directory from its measurements, cases and intervals."""
    measurements, cases, intervals = tables
    measurements = measured_rows(measurements)
    widths = sorted(
        sqrt(high / low) - 1
        for low, high in zip(
            *(intervals[name].to_pylist() for name in ("stack_low_us", "stack_high_us")),
            strict=True,
        )
        if low > 0 and log(high / low) < 20
    )
    times = [text for text in pc.unique(measurements["started_at"]).to_pylist() if text]
    return Card(
        path=path,
        stack=stack,
        runtime=stack.runtime,
        cases=cases.num_rows,
        kernels=dict(sorted(Counter(cases["kernel_type"].to_pylist()).items())),
        durations=intervals.num_rows,
        pooled=pc.sum(pc.greater(intervals["sessions"], 1)).as_py() or 0,
        imported=pc.sum(pc.equal(intervals["sessions"], 0)).as_py() or 0,
        half_width=widths[len(widths) // 2] if widths else None,
        measurements=measurements.num_rows,
        sessions=measurements.group_by([*_SESSION]).aggregate([]).num_rows,
        devices=measurements.group_by([*_DEVICE]).aggregate([]).num_rows,
        first=min(times, default="")[:10],
        last=max(times, default="")[:10],
    )


def dataset_md(card: Card) -> bytes:
    """Return the card as a page for people."""
    stack = {n: value for n, value in card.stack.as_json().items() if value and n != "details"}
    width = "-" if card.half_width is None else half_width_text(card.half_width)
    sessions = f"{counted(card.sessions, 'session')} on {counted(card.devices, 'device')}"
    lines = [
        f"# {card.path}",
        "",
        *(
            []
            if card.runtime is Runtime.REAL
            else [f"These numbers are of a {card.runtime} runtime, not of a device.", ""]
        ),
        f"Durations of the operators that LLMs run, {_measured_by(card)}.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in stack.items()),
        f"| cases | {card.cases:,} of {counted(len(card.kernels), 'kernel type')} |",
        f"| with a duration | {card.durations:,}, of which {card.pooled:,} from several sessions |",
        *([f"| imported from other tools | {card.imported:,} |"] if card.imported else []),
        f"| median half-width of the 95 % intervals | {width} |",
        f"| measurements | {card.measurements:,} in {sessions} |",
        f"| measured | {_period(card)} |",
        f"| licence of the data | {_LICENCE} |",
        "",
        "Each case was replayed alone, many times in a row, in one session of a profiler or more. "
        "A duration is the mean over sessions; the interval is that of the mean that this stack "
        "would show over sessions and devices. Failures are rows with a reason. How well durations "
        "between these cases are predicted, by kernel type, on rows that are left out: `opmeter db "
        "quality`.",
        "",
        "Collectives are in CSV files only. `croissant.json` describes the columns.",
        "",
    ]
    return "\n".join(lines).encode()


def croissant_json(
    card: Card, name: str, shown: FileEntry, measurements: Mapping[str, FileEntry]
) -> bytes:
    """Return the card as Croissant: files with their hashes, and columns with their meaning. `name`
    is that of the snapshot."""
    files = [("shown", keys.shown(card.path, name), shown)]
    files += [
        (f"measurements-{at}", keys.measurements(card.path, name), entry)
        for at, (name, entry) in enumerate(sorted(measurements.items()), 1)
    ]
    period = f"{card.first}/{card.last}" if card.first else ""
    return readable_json(
        {
            "@context": _CONTEXT,
            "@type": "sc:Dataset",
            "name": card.path.replace("/", "-"),
            "description": (
                f"Durations of {card.cases} operator calls of {len(card.kernels)} kernel types on "
                f"{card.path}, with 95 % intervals over sessions and devices. Runtime: "
                f"{card.runtime}."
            ),
            "conformsTo": "http://mlcommons.org/croissant/1.0",
            "license": _LICENCE,
            "url": f"{_UP}{keys.SHOWN}{keys.partition(card.path)}/",
            **({"temporalCoverage": period, "datePublished": card.last} if period else {}),
            "distribution": [
                {
                    "@type": "cr:FileObject",
                    "@id": name,
                    "name": name,
                    "contentUrl": _UP + key,
                    "contentSize": f"{entry.size_bytes} B",
                    "encodingFormat": "application/x-parquet",
                    "sha256": entry.sha256,
                }
                for name, key, entry in files
            ],
            "recordSet": [
                _records("shown", "shown", SHOWN),
                *(_records("measurements", name, MEASUREMENTS) for name, _, _ in files[1:2]),
            ],
        }
    )


def _records(name: str, file: str, schema: pa.Schema) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": f"{name}-records",
        "name": f"{name}-records",
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{name}-records/{column}",
                "name": f"{name}-records/{column}",
                "description": f"{text}, in {unit}" if unit else text,
                "dataType": _DATA_TYPES.get(kind, "sc:Text"),
                "source": {"fileObject": {"@id": file}, "extract": {"column": column}},
            }
            for column, kind, unit, text in described_columns(schema)
            if not kind.startswith("list")
        ],
    }


def _measured_by(card: Card) -> str:
    if not card.imported:
        return "measured by opmeter"
    others = "imported from other tools, without a certificate (channel `imported`)"
    return others if card.imported == card.durations else f"measured by opmeter or {others}"


def _period(card: Card) -> str:
    if not card.first:
        return "-"
    return card.first if card.first == card.last else f"{card.first} to {card.last}"
