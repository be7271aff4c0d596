"""An image is wrong when workers on two nodes found another plan or software in it (exit 43). Pure.

A Job ends with the first pod that says so, and takes all others with it. One node may be broken in
a way that looks like a wrong image: so a second one is asked, where there is one.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from collector.worker.exit_codes import ExitCode
from jobs.decide.actions import Announce
from jobs.decide.observed import JobView, Observed


@dataclass(frozen=True, slots=True)
class ImageRefusal:
    """What workers said against their image."""

    jobs: tuple[JobView, ...]  # those that ended with such a worker
    nodes: frozenset[str]  # where it ran
    is_proved: bool  # it is the image, and no node

    def warnings(self) -> Iterator[Announce]:
        """What a person should know of it."""
        last = self.jobs[-1]
        if self.is_proved:
            yield Announce(
                "WrongImage",
                f"{last.name}: {last.message}. No further "
                "wave is created. To do: use the image that "
                "matches the stack (kubectl logs of that pod lists the differences), then launch "
                "the campaign again",
                last.name,
            )
            return
        for node in sorted(self.nodes):
            yield Announce(
                "NodeDiffers",
                f"{node}: the software there differs from the plan's, and the Job of that worker "
                f"ended ({last.message}); other nodes are used. To do: delete the image from the "
                "node, and check its driver and mounts",
                node,
            )


def refusal(
    jobs: Sequence[JobView], observed: Observed, avoid: Collection[str]
) -> ImageRefusal | None:
    """What is said by Jobs whose waves are known; of another's pods nobody knows what they found.

    Example: a worker on n1 ends with exit 43. Of the nodes n1 and n2 that proves nothing, and the
    next wave goes to n2; where n2 says so too, or is quarantined, or is not there, it is proved.
    """
    ended = tuple(j for j in jobs if j.reason == "PodFailurePolicy" and j.wave in observed.by_hash)
    if not ended:
        return None
    names = {job.name for job in ended}
    said = {p.node for p in observed.pods if p.job in names and p.exit_code == ExitCode.IMAGE}
    others = {node.name for node in observed.nodes} - said - frozenset(avoid)
    return ImageRefusal(ended, frozenset(said), len(said) != 1 or not others)
