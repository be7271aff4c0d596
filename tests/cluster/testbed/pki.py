"""The certificates of a cluster, and a kubeconfig for each account."""

import base64
import json

from tests.cluster.testbed.machine import command
from tests.cluster.testbed.settings import Settings

_DAYS = "3650"
_SERVICE = "kubernetes.default.svc"


def make(settings: Settings) -> None:
    """Write the missing files."""
    folder = settings.pki
    if (folder / "complete").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "openssl.cnf").write_text("[req]\ndistinguished_name = name\n[name]\n")
    _certificate(settings, "ca", "/CN=opmeter-test-ca", ["basicConstraints=critical,CA:TRUE"])
    command(["openssl", "genrsa", "-out", folder / "sa.key", "2048"])
    command(["openssl", "rsa", "-in", folder / "sa.key", "-pubout", "-out", folder / "sa.pub"])
    _issue(settings, "apiserver", "/CN=kube-apiserver", "serverAuth", _names_of_api(settings))
    _issue(settings, "apiserver-kubelet", "/O=system:masters/CN=apiserver-kubelet", "clientAuth")
    _make_clients(settings)
    (folder / "complete").touch()


def _make_clients(settings: Settings) -> None:
    subjects = {
        "admin": "/O=system:masters/CN=admin",
        "kube-controller-manager": "/CN=system:kube-controller-manager",
        "kube-scheduler": "/CN=system:kube-scheduler",
    }
    for name, subject in subjects.items():
        _issue(settings, name, subject, "clientAuth")
        _write_kubeconfig(settings, name)
    for node in range(1, settings.nodes + 1):
        subject = f"/O=system:nodes/CN=system:node:node{node}"
        names = f"IP:{settings.node_address(node)},DNS:node{node}"
        _issue(settings, f"node{node}", subject, "serverAuth,clientAuth", names)
        _write_kubeconfig(settings, f"node{node}")


def _names_of_api(settings: Settings) -> str:
    addresses = (settings.api_address, settings.gateway, "127.0.0.1")
    hosts = ("localhost", "kubernetes", "kubernetes.default", _SERVICE, f"{_SERVICE}.cluster.local")
    return ",".join([*(f"IP:{a}" for a in addresses), *(f"DNS:{h}" for h in hosts)])


def _issue(settings: Settings, name: str, subject: str, usage: str, names: str = "") -> None:
    folder = settings.pki
    extensions = ["keyUsage=digitalSignature", f"extendedKeyUsage={usage}"]
    extensions += [f"subjectAltName={names}"] if names else []
    signed_by = ["-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key")]
    _certificate(settings, name, subject, extensions, signed_by)


def _certificate(
    settings: Settings,
    name: str,
    subject: str,
    extensions: list[str],
    signed_by: list[str] | None = None,
) -> None:
    folder = settings.pki
    command(
        ["openssl", "req", "-x509", "-noenc", "-days", _DAYS, "-config", folder / "openssl.cnf"]
        + ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", subject]
        + ["-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"]
        + [word for extension in extensions for word in ("-addext", extension)]
        + (signed_by or [])
    )


def _write_kubeconfig(settings: Settings, name: str) -> None:
    folder = settings.pki

    def content(file: str) -> str:
        return base64.b64encode((folder / file).read_bytes()).decode()

    server = {"server": settings.api, "certificate-authority-data": content("ca.crt")}
    user = {
        "client-certificate-data": content(f"{name}.crt"),
        "client-key-data": content(f"{name}.key"),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": settings.name, "cluster": server}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "default", "context": {"cluster": settings.name, "user": name}}],
        "current-context": "default",
    }
    (folder / f"{name}.kubeconfig").write_text(json.dumps(config, indent=1))
