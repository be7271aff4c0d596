"""etcd, the API server, the controllers, the scheduler, and a name server for headless Services."""

import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.testbed import dns
from tests.cluster.testbed.build import Built
from tests.cluster.testbed.kubectl import Kubectl
from tests.cluster.testbed.processes import Daemon, wait_until
from tests.cluster.testbed.settings import Settings

# Gang scheduling of plain Jobs, alpha in 1.36: waves of independent shards must avoid it.
_GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true,WorkloadWithJob=true"
_GANG_API = "--runtime-config=scheduling.k8s.io/v1alpha2=true"
# Far above the defaults, which would be the limit of every test of scale.
_CLIENT_LIMITS = ("--kube-api-qps=500", "--kube-api-burst=1000")
_START_S = 120.0


@dataclass(frozen=True)
class ControlPlane:
    """The control plane of a cluster, whether it runs or not."""

    settings: Settings
    built: Built
    kubectl: Kubectl

    @property
    def etcd(self) -> Daemon:
        client, peer = self._etcd_url, f"http://{self.settings.loopback}:2380"
        return self._daemon(
            "etcd",
            f"--data-dir={self.settings.etcd}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # the data is thrown away with the cluster
        )

    @property
    def api_server(self) -> Daemon:
        settings, pki = self.settings, self.settings.pki
        return self._daemon(
            "kube-apiserver",
            f"--etcd-servers={self._etcd_url}",
            f"--bind-address={settings.api_address}",
            "--secure-port=443",
            f"--advertise-address={settings.gateway}",
            f"--service-cluster-ip-range={settings.services_network}",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt",
            f"--kubelet-client-certificate={pki}/apiserver-kubelet.crt",
            f"--kubelet-client-key={pki}/apiserver-kubelet.key",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            # Webhooks are called at their pods' addresses: there is no kube-proxy.
            "--enable-aggregator-routing=true",
            f"--cert-dir={settings.run}/kube-apiserver",
            _GATES,
            _GANG_API,
        )

    @property
    def controllers(self) -> Daemon:
        pki = self.settings.pki
        return self._client(
            "kube-controller-manager",
            f"--service-account-private-key-file={pki}/sa.key",
            f"--root-ca-file={pki}/ca.crt",
            f"--cluster-signing-cert-file={pki}/ca.crt",
            f"--cluster-signing-key-file={pki}/ca.key",
            "--use-service-account-credentials",
            "--node-monitor-grace-period=20s",
        )

    @property
    def scheduler(self) -> Daemon:
        return self._client("kube-scheduler")

    @property
    def name_server(self) -> Daemon:
        settings = self.settings
        words = [sys.executable, "-I", dns.__file__]
        words += [settings.dns_address, settings.api, str(settings.pki)]
        return Daemon("dns", settings.run, lambda: words)

    def start(self) -> None:
        """Start the stopped parts, and wait until the API server replies."""
        self.etcd.start()
        self.start_api_server()
        for daemon in (self.controllers, self.scheduler, self.name_server):
            daemon.start()

    def start_api_server(self) -> None:
        """Start the API server if it is stopped, and wait until it replies."""
        self.api_server.start()
        wait_until("API server", self.answers, _START_S, self.api_server, self.etcd)

    def daemons(self) -> tuple[Daemon, ...]:
        """Return all processes, clients before their servers."""
        return (self.name_server, self.scheduler, self.controllers, self.api_server, self.etcd)

    def answers(self) -> bool:
        """Whether the API server is ready."""
        return self.kubectl.succeeds("get", "--raw", "/readyz")

    @property
    def _etcd_url(self) -> str:
        return f"http://{self.settings.loopback}:2379"

    def _client(self, name: str, *flags: str) -> Daemon:
        kubeconfig = self.settings.pki / f"{name}.kubeconfig"
        return self._daemon(
            name,
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            f"--bind-address={self.settings.loopback}",
            f"--cert-dir={self.settings.run}/{name}",
            "--leader-elect=false",
            *_CLIENT_LIMITS,
            _GATES,
            *flags,
        )

    def _daemon(self, name: str, *flags: str) -> Daemon:
        words: list[str | Path] = [self.built.tool(name), *flags]
        return Daemon(name, self.settings.run, lambda: words)
