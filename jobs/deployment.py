"""A cluster's side of a campaign, and the words that its objects share.

What is neither plan nor machine type: where images, store and volumes are. Each field is a key of
the campaign's ConfigMap.
"""

from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]

LABEL = "opmeter.io/"
PART_OF = "app.kubernetes.io/part-of"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A cluster's side of a campaign: what is neither plan nor machine type.

    `root` is the store as pods reach it; `store_secret` names a Secret of AWS's files
    (`credentials`, `config`), `store_claim` a volume for a `file://` store under /store.
    `site_packages` names a read-only claim that holds torch, for images that have none. `owner`
    is the ConfigMap (name, uid) with which everything goes.
    """

    namespace: str
    image: str
    controller_image: str
    root: str
    store_secret: str = ""
    store_claim: str = ""
    site_packages: str = ""
    owner: tuple[str, str] | None = None
    single_writer: bool = False
    pull_policy: str = "IfNotPresent"
