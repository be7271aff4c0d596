"""A campaign on NPUs in place of the drill's own, on the recording runtime."""

from tests.cluster.drill import Drill

# Small operators in five shards, and one gang of both devices of a pod.
TEXT = """\
campaign: drill
sources:
  - {bundled: quickstart}
  - collectives:
      operations: [all_gather]
      bytes: [4096]
      dtype: float32
      groups: [2]
      ranks: 2
      grid: [2]
      mode: event
operators: [hcom_allGather_, NotEqual, Sub, Abs, Greater, Range, OnesLike, Pows, NonZero, Sort,
  Equal, Sin, Cos, Muls, RmsNorm, Slice]
target: here
backend: npu
devices: 4
measure: {budget_s: 0.002, repeats: 3, cache: warm}
shards: {target_s: 0.02, session_s: 60}
limits: {case_s: 120, memory_gb: 1}
quality: {repeat_share: 0}
"""
# Two pods fit on a node.
SITE = """\
site: drill
backend: npu
resource: huawei.com/Ascend910
devices_per_node: 2
shape: node
cpu: 800m
memory: 3Gi
ephemeral_storage: 2Gi
shared_memory: 256Mi
"""


def as_npus(drill: Drill) -> None:
    """The packages of the drill must be those of `npu_packages`."""
    drill.text, drill.site, drill.image = TEXT, SITE, drill.cluster.npu_image
