"""A campaign of one gang over two pods of two ranks, in place of the drill's own."""

from tests.cluster.drill import Drill

# Two pods of two ranks; long enough that a drill finds them running.
TEXT = """\
campaign: drill
sources:
  - collectives:
      operations: [all_reduce, all_gather]
      bytes: [4096, 16384]
      dtype: float32
      groups: [4]
      ranks: 4
      grid: [2, 2]
      mode: event
target: here
backend: cpu
devices: 2
measure: {budget_s: 5, repeats: [3, 20000], cache: warm}
shards: {target_s: 60, session_s: 60}
limits: {case_s: 120, memory_gb: 2}
quality: {repeat_share: 0}
"""


def as_gang(drill: Drill) -> None:
    """Torch in five processes needs more memory than a worker of one."""
    drill.text = TEXT
    drill.site = drill.site.replace("memory: 1536Mi", "memory: 3Gi") + "ranks_per_pod: 2\n"


def wait_for_both(gang: Drill) -> None:
    gang.wait("both pods run", lambda: len(gang.workers()) == 2)


def check_gang(gang: Drill) -> None:
    """Check that all is measured well by one Job: lost pods were replaced within it."""
    gang.finish()
    assert set(gang.outcomes().values()) == {"ok"}
    (wave,) = gang.waves()
    assert wave["pods"] == 2
