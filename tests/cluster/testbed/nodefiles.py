"""The files that the programs of a node read: settings of containerd, its network, and the
kubelet."""

import json
from pathlib import Path

from tests.cluster.testbed.build import Built
from tests.cluster.testbed.settings import Settings

_CONTAINERD = """\
version = 2
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "local/pause:1"
  stream_server_address = "{address}"
  disable_apparmor = true
  # Without CAP_SYS_RESOURCE a score cannot be lowered, and no container would start.
  restrict_oom_score_adj = true
  # Not in /run/netns, where those of killed pods would stay behind.
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def write(settings: Settings, node: int) -> None:
    """Write every file of a node."""
    folder = settings.node_folder(node)
    for part in ("cni", "containerd", "kubelet"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "containerd.toml").write_text(
        _CONTAINERD.format(
            folder=folder,
            socket=runtime_socket(settings, node),
            address=settings.node_address(node),
        )
    )
    (folder / "cni/pods.conflist").write_text(json.dumps(_pod_network(settings, node), indent=1))
    (folder / "kubelet.yaml").write_text(json.dumps(_kubelet(settings, node), indent=1))


def group(settings: Settings, node: int) -> str:
    """Return the control group of a node's pods."""
    return f"{settings.name}-node{node}"


def runtime_socket(settings: Settings, node: int) -> Path:
    return settings.node_folder(node) / "containerd.sock"


def kubelet_command(settings: Settings, built: Built, node: int) -> list[str | Path]:
    folder, name = settings.node_folder(node), f"node{node}"
    return [
        built.tool("kubelet"),
        f"--config={folder}/kubelet.yaml",
        f"--kubeconfig={settings.pki}/{name}.kubeconfig",
        f"--hostname-override={name}",
        f"--node-ip={settings.node_address(node)}",
        f"--root-dir={folder}/kubelet",
        f"--cert-dir={folder}/kubelet/pki",
        "--node-labels=accelerator=huawei-Ascend910",
    ]


def _pod_network(settings: Settings, node: int) -> dict[str, object]:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(settings.node_folder(node) / "addresses"),
            "ranges": [[{"subnet": settings.pods_network(node)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}


def _kubelet(settings: Settings, node: int) -> dict[str, object]:
    pki = settings.pki
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": settings.node_address(node),
        "healthzBindAddress": "127.0.0.1",  # the node's own
        "authentication": {
            "x509": {"clientCAFile": str(pki / "ca.crt")},
            "webhook": {"enabled": True},
            "anonymous": {"enabled": False},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / f"node{node}.crt"),
        "tlsPrivateKeyFile": str(pki / f"node{node}.key"),
        "containerRuntimeEndpoint": f"unix://{runtime_socket(settings, node)}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{group(settings, node)}",
        "failCgroupV1": False,
        "enforceNodeAllocatable": ["pods"],
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        "clusterDomain": "cluster.local",
        "clusterDNS": [settings.dns_address],
        # The machine is shared: the node does not judge its disk.
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        # Sooner than in a real cluster, so that a test of a lost node takes seconds.
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "20s",
    }
