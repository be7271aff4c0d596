"""A cluster's side of a campaign, and the words that its objects share.

What is neither plan nor machine type: where images, store and volumes are. Each field is a key of
the campaign's ConfigMap, but for those in NO_KEYS.
"""

from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]

LABEL = "opmeter.io/"
PART_OF = "app.kubernetes.io/part-of"
COMPONENT_LABEL = "app.kubernetes.io/component"
JOB_NAME = "batch.kubernetes.io/job-name"  # which Job a pod belongs to
NO_KEYS = frozenset({"namespace", "owner", "leased"})


@dataclass(frozen=True, slots=True)
class Deployment:
    """A cluster's side of a campaign: what is neither plan nor machine type.

    `root` is the store as pods reach it; `store_secret` names a Secret of AWS's files
    (`credentials`, `config`), `worker_secret` that of workers and probes, where it is another: they
    write below a campaign's attempts and commits alone. `store_claim` is a volume for a `file://`
    store under /store.
    `site_packages` names a read-only claim that holds torch, for images that have none.
    `merge_memory` is what a merge may take, which holds the rows of a database.
    `allow_unpinned` takes an NPU image without a digest. `owner` is the
    ConfigMap (name, uid) with which everything goes. `leased` is found out: the store does not
    honour create-only writes, and merges take turns by a Lease.
    """

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

    @property
    def looks_first(self) -> bool:
        """Whether workers look before they write, since the store would not tell them.

        That is as good for a shard's commit, because an index has one pod at a time. Only a pod on
        a lost node may live beside its successor; where both commit at the same moment, the later
        one names the attempt that counts, and both attempts are complete.
        """
        return self.single_writer or self.leased
