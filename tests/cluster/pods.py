"""Pods of a test: one container that meets the `restricted` level."""

from collections.abc import Mapping, Sequence
from typing import Any

WORK = "/work"


def pod(
    name: str,
    image: str,
    command: Sequence[str],
    *,
    devices: int = 0,
    environment: Mapping[str, str] | None = None,
    claims: Mapping[str, str] | None = None,
    node: str = "",
) -> dict[str, Any]:
    """Return a pod; `claims` are mounted read-only, claim -> path, and /work is writable."""
    volumes: list[dict[str, Any]] = [{"name": "work", "emptyDir": {}}]
    mounts: list[dict[str, Any]] = [{"name": "work", "mountPath": WORK}]
    for claim, path in (claims or {}).items():
        source = {"claimName": claim, "readOnly": True}
        volumes.append({"name": claim, "persistentVolumeClaim": source})
        mounts.append({"name": claim, "mountPath": path, "readOnly": True})
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "env": [{"name": key, "value": value} for key, value in (environment or {}).items()],
        "resources": {"limits": {"huawei.com/Ascend910": str(devices)}} if devices else {},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"opmeter-test": "pod"}},
        "spec": pod_spec(container, volumes) | ({"nodeName": node} if node else {}),
    }


def pod_spec(container: dict[str, Any], volumes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields of every pod of these tests besides its container."""
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }


def job(name: str, pod_: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    """Return an Indexed Job of such a pod."""
    template = {"metadata": {"labels": {"opmeter-test": name}}, "spec": pod_["spec"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"completionMode": "Indexed", "template": template, **spec},
    }
