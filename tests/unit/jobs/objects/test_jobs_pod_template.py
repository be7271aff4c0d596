"""Where a pod may run, and for how long it stays on a node that does not answer."""

import pytest

from jobs.objects.pod_template import node_selection
from jobs.objects.site import load_site, site_from_text

pytestmark = pytest.mark.fast

SITE = """\
site: own
backend: cpu
devices_per_node: 1
shape: device
cpu: "1"
memory: 1Gi
"""


def seconds_on_a_lost_node(site):
    """How Kubernetes applies the tolerations of a pod: the first that matches a taint counts."""
    pod = {}
    node_selection(pod, site, ())
    found = {}
    for toleration in pod["tolerations"]:
        for state in ("unreachable", "not-ready"):
            if toleration.get("key", "") in ("", f"node.kubernetes.io/{state}"):
                found.setdefault(state, toleration.get("tolerationSeconds"))
    return found


def test_pod_stays_five_minutes_on_an_unresponsive_node():
    assert seconds_on_a_lost_node(load_site("cpu")) == {"unreachable": 300, "not-ready": 300}


def test_site_may_give_up_a_node_sooner():
    own = "{key: node.kubernetes.io/unreachable, effect: NoExecute, tolerationSeconds: 5}"
    own = f"tolerations:\n  - {own}\n"
    found = seconds_on_a_lost_node(site_from_text(SITE + own, path="own.yaml"))
    assert found == {"unreachable": 5, "not-ready": 300}


def test_site_with_a_general_toleration_leaves_a_lost_node():
    own = "tolerations:\n  - {operator: Exists}\n"
    found = seconds_on_a_lost_node(site_from_text(SITE + own, path="own.yaml"))
    assert found == {"unreachable": 300, "not-ready": 300}
