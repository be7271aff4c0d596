"""Simulations that once broke an invariant, each with the defect it found. They run in every test
run.

The draws of a seed change with the simulation, therefore each defect also has a test of its own
next to the code that was fixed.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kept:
    """`faults` are set in addition to those that the seed draws, as by `--fault NAME=VALUE`."""

    seed: int
    faults: tuple[str, ...]
    found: str


KEPT = (
    Kept(3, ("rot=25",), "a bit turned over in HEAD.json refused every merge (alone)"),
    Kept(16, ("rot=25",), "the same, late in a campaign"),
    Kept(0, ("rot=25",), "a part that rots between its reading and its commit"),
    Kept(38, ("rot=25",), "the same, on a cluster"),
    Kept(29, ("rot=25",), "a version was made for the name of a plan, all of it held already"),
    Kept(36, ("rot=25",), "a manifest that rots between its writing and its commit: no fault"),
    Kept(37, (), "pods without work beside as many as there are devices: no fault"),
    Kept(293, (), "shards committed late, after their plan was retired, were published by nobody"),
    Kept(997, (), "an older wave, trusted again, had its pods on top of a younger one's"),
    Kept(429, (), "an older wave, let go, started again what a wave of the same round had taken"),
    Kept(619, (), "a pod that measured what a younger wave had, too, was not counted"),
    Kept(1005129, (), "a played run merged its own plan alone, as the real one does not: no fault"),
    Kept(1017834, (), "a pod whose Job is gone was counted among those with work: no fault"),
    Kept(1019353, (), "a pod of a wave's older Job, on a lost node, had its shard started twice"),
    Kept(1069440, (), "an index that a younger wave had began in the place of an empty one's pod"),
    Kept(155, ("gangs=4",), "a gang was let go, and a wave was launched into its place"),
    Kept(17, ("gangs=4", "people=30"), "a retired plan's only shard came with another's: no fault"),
    Kept(267, ("gangs=6",), "a gang keeps away from more nodes than a quarantine may: no fault"),
)
