"""Invariants that hold after every step under all faults: the rules that protect data, checked from
outside. Nothing here trusts the code under test: objects are read as bytes, durations are compared
with those that the simulated devices measured."""

import csv
import io
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from collector.codec.canonical import sha256_hex
from collector.model.vocabulary import INPUT_SHAPES
from tests.attack.simulation.device import Truth
from tests.attack.simulation.storage import Depot
from tests.attack.simulation.world import World

# Written once and never again by any process; everything else may be rewritten.
_SEALED = re.compile(
    r"campaigns/[^/]+/(sources|plans|shards|waves|committed)/.*"
    r"|campaigns/[^/]+/attempts/.*/(raw/.*|part-.*|entry-.*|manifest\.json|log\.zst)"
    r"|db/(measurements|snapshots|commits)/.*"
)
_COMMITTED = re.compile(r"campaigns/([^/]+)/committed/([^/]+)\.json")
_COMMIT = re.compile(r"db/commits/(\d+)\.json")
_SAME_US = 5e-4  # closer than any two measurements of a case
_DECIMALS_US = 6e-3
_MESSAGE = "message_bytes"
_SAME_SHARE = 1e-4  # the precision of a mean over sessions: five digits


class Promises:
    """Called at every change of the store; ends the simulation at the first violation. `shapes`
    maps each spelling of input shapes to its case, over all campaigns, and `messages` the size of a
    collective to its case."""

    def __init__(
        self,
        world: World,
        depot: Depot,
        truth: Truth,
        shapes: Mapping[str, str],
        messages: Mapping[str, str],
    ):
        self._world, self._depot, self._truth = world, depot, truth
        self._shapes, self._messages = shapes, messages
        self.rotten: set[str] = set()
        self.commits = self.shards = 0
        self._shown: dict[str, set[str]] = {}  # version path -> cases with a duration
        self._finals: dict[str, set[str]] = {}  # case -> ids in committed manifests
        depot.watch = self.changed

    def changed(self, verb: str, key: str, before: bytes | None, after: bytes | None) -> None:
        """One object was written or removed."""
        if before is not None and before != after and _SEALED.fullmatch(key):
            self._world.broken(f"{verb} changed {key}, which is written once")
        if before is not None:
            return
        if found := _COMMITTED.fullmatch(key):
            self._shard_committed(found[1], found[2], key)
        elif found := _COMMIT.fullmatch(key):
            self._published(int(found[1]), key)

    def _json(self, key: str, named_by: str) -> Any:
        if key not in self._depot.objects:
            self._world.broken(f"{named_by} names {key}, which is not there")
        return json.loads(self._depot.objects[key])

    def _shard_committed(self, campaign: str, shard: str, key: str) -> None:
        """Check that the objects of a commit exist, and every case of the shard has one final
        outcome."""
        self.shards += 1
        commit = self._json(key, "the store")
        stored = commit["manifest"]
        self._check_stored(stored, key)
        if stored["key"] in self.rotten:
            return  # damaged between its write and its commit, as a part may be below
        manifest = self._json(stored["key"], key)
        table = f"campaigns/{campaign}/shards/{shard}.csv"
        expected = {self._shapes[row[INPUT_SHAPES]] for row in _rows(self._depot.objects[table])}
        final = manifest["final"]
        if set(final) != expected:
            self._world.broken(f"{key}: {len(final)} final outcomes for {len(expected)} cases")
        tried: dict[str, dict[str, str]] = {}
        if any(entry["part"]["key"] in self.rotten for entry in manifest["parts"]):
            return  # damaged between its read and its commit: its cases are planned again
        for entry in manifest["parts"]:
            for item in (entry["part"], *entry["raw"]):
                self._check_stored(item, stored["key"])
            for row in _rows(self._depot.objects[entry["part"]["key"]]):
                if row["measurement"] in tried:
                    self._world.broken(f"{key}: {row['measurement']} is in two of its parts")
                tried[row["measurement"]] = row
        for case, measurement in final.items():
            if tried.get(measurement, {}).get("case") != case:
                self._world.broken(f"{key}: no part holds {measurement} for case {case}")
            good = [r for r in tried.values() if r["case"] == case and r["outcome"] == "ok"]
            if good and tried[measurement]["outcome"] != "ok":
                self._world.broken(f"{key}: a failed one displaces a good one of case {case}")
            self._finals.setdefault(case, set()).add(measurement)

    def _check_stored(self, stored: Mapping[str, Any], named_by: str) -> None:
        key = stored["key"]
        data = self._depot.objects.get(key)
        if data is None:
            self._world.broken(f"{named_by} names {key}, which is not there")
        elif key not in self.rotten and sha256_hex(data) != stored["sha256"]:
            self._world.broken(f"{named_by} names other bytes of {key}")

    def _published(self, number: int, key: str) -> None:
        """Check that a commit is the next one, its objects exist, and it shows only true
        durations."""
        if number != self.commits + 1:
            self._world.broken(f"commit {number} follows commit {self.commits}")
        self.commits = number
        commit = self._json(key, "the store")
        if commit["runtime"] != "real":
            self._world.broken(f"{key}: its runtime is {commit['runtime']}")
        manifest = self._json(f"db/snapshots/{commit['snapshot']}/manifest.json", key)
        for folder in manifest["collectives"].values():
            self._tree(folder["snapshot"], folder["files"], key)
        for path, entry in manifest["versions"].items():
            of_version = f"db/versions/{entry['snapshot']}/{path}/"
            files = self._json(f"{of_version}manifest.json", key)
            self._tree(entry["snapshot"], files["tree"], key)
            device, _, version = path.split("/")
            partition = f"device={device}/version={version}"
            stored = {
                f"db/measurements/{partition}/{name}.parquet": file["sha256"]
                for name, file in files["measurements"].items()
            }
            stored[f"db/shown/{partition}/{entry['snapshot']}.parquet"] = files["shown"]["sha256"]
            for name in ("profiles.parquet", "pairs.parquet", "index.bin"):
                stored[of_version + name] = files[name.partition(".")[0]]["sha256"]
            for name, sha256 in stored.items():
                self._check_stored({"key": name, "sha256": sha256}, key)

    def _tree(self, snapshot: str, files: Mapping[str, Any], key: str) -> None:
        """Check files of a tree: they exist, and show only true durations."""
        where = f"db/snapshots/{snapshot}/"
        for path, entry in files.items():
            self._check_stored({"key": where + path, "sha256": entry["sha256"]}, key)
            if path.endswith(".csv"):
                rows = _rows(self._depot.objects[where + path])
                self._shows(path.rsplit("/", 1)[0], list(map(self._reported, rows)), key)

    def _reported(self, row: Mapping[str, str]) -> tuple[str, str, float]:
        """Return the case of a row, its duration, and the tolerance."""
        if _MESSAGE in row:  # of a collective, in two decimals
            return self._messages[row[_MESSAGE]], row["Duration(us)"], _DECIMALS_US
        return self._shapes[row[INPUT_SHAPES]], row["Average Duration(us)"], _SAME_US

    def _shows(self, version: str, rows: Collection[tuple[str, str, float]], key: str) -> None:
        shown = set()
        for case, message, same_us in rows:
            if not message:
                continue
            if case in shown:
                self._world.broken(f"{key}: case {case} is shown twice")
            shown.add(case)
            known = (self._truth.measured.get(m) for m in self._finals.get(case, ()))
            times_us = [t[1] for t in known if t and t[0] == case]
            # A case of several sessions shows their mean, in five digits.
            sessions = sum(t[0] == case for t in self._truth.measured.values())
            slack_us = same_us if sessions == 1 else max(same_us, _SAME_SHARE * float(message))
            least, most = (of(times_us, default=math.nan) for of in (min, max))
            if not least - slack_us < float(message) < most + slack_us:
                self._world.broken(f"{key}: {message} us is shown for {case}, and was not measured")
        if blanked := self._shown.get(version, set()) - shown:
            self._world.broken(f"{key}: {len(blanked)} durations that were shown are blanked")
        self._shown[version] = shown

    def shown(self) -> frozenset[str]:
        """Return the cases that have a duration."""
        return frozenset().union(*self._shown.values())


def _rows(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))
