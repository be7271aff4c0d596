"""The deployment of a campaign in a cluster, and constants that its objects share.

It is independent of the plan and the machine type: the locations of images, store and volumes. Each
field is a key of the campaign's ConfigMap, except those in NO_KEYS.
"""

from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]

LABEL = "opmeter.io/"
PART_OF = "app.kubernetes.io/part-of"
COMPONENT_LABEL = "app.kubernetes.io/component"
JOB_NAME = "batch.kubernetes.io/job-name"  # the Job of a pod
NO_KEYS = frozenset({"namespace", "owner", "leased", "operators"})


@dataclass(frozen=True, slots=True)
class Deployment:
    """The deployment of a campaign in a cluster, without plan and machine type.

    Attributes:
        root: the store as pods reach it.
        store_secret: names a Secret with AWS files (`credentials`, `config`).
        worker_secret: the Secret of workers and probes, if it is another: they write only below a
            campaign's attempts and commits.
        store_claim: a volume for a `file://` store under /store.
        site_packages: names a read-only claim that contains torch, for images without it.
        merge_memory: the memory of a merge, which holds the rows of a database.
        allow_unpinned: accepts an NPU image without a digest.
        owner: the ConfigMap (name, uid) whose deletion deletes everything.
        leased: detected: the store does not support create-only writes, and merges exclude each
            other with a Lease.
        operators: hashes of the campaign's files of operators, which its workers may execute."""

    namespace: str
    image: str
    controller_image: str
    root: str
    store_secret: str = ""
    worker_secret: str = ""
    store_claim: str = ""
    site_packages: str = ""
    owner: tuple[str, str] | None = None
    single_writer: bool = False
    allow_unpinned: bool = False
    pull_policy: str = "IfNotPresent"
    merge_memory: str = "8Gi"
    leased: bool = False
    operators: tuple[str, ...] = ()

    @property
    def checks_before_write(self) -> bool:
        """Return whether workers check before they write: the store does not refuse overwrites.

        This is as safe for a shard's commit, because an index has one pod at a time. Only a pod on
        a lost node may run concurrently with its successor; if both commit at the same moment, the
        later commit names the attempt that counts, and both attempts are complete."""
        return self.single_writer or self.leased
