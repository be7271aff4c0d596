"""In which mode an Ascend device plugin runs, and whether workers of a site get devices from it.

The options are those of MindCluster's plugin (2026-08), which stand in the arguments of its
DaemonSet: with `volcanoType` it hands out only what Volcano has booked for a pod. Pure.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from jobs.doctor.machine import Check
from jobs.objects.deployment import Manifest
from jobs.objects.site import Site

_OPTION = re.compile(r"(?:^|[\s\"'])--?(volcanoType|shareDevCount)(?:[= ]([\w.]+))?")
_TRUE = ("", "true", "1", "t")
_NAME = "plugin"


def check_device_plugin(daemon_sets: Iterable[Manifest] | None, site: Site) -> Check:
    """Whether the plugin's mode fits the site's scheduler and shape; `daemon_sets` are those of
    all namespaces, None where this account may not list them."""
    if not site.resource:
        return Check(_NAME, True, "this site requests no devices", skipped=True)
    if daemon_sets is None:
        words = (
            "this account may not list DaemonSets; with it, see the "
            "plugin's arguments: "
            "kubectl get daemonsets -A -o yaml | grep volcanoType"
        )
        return Check(_NAME, True, words, skipped=True)
    found = list(_plugins(daemon_sets))
    if not found:
        words = "no DaemonSet is a known Ascend device plugin"
        return Check(_NAME, True, words, skipped=True)
    checks = [_check(where, options, site) for where, options in found]
    return next((check for check in checks if not check.ok), checks[0])


def _plugins(daemon_sets: Iterable[Manifest]) -> Iterator[tuple[str, dict[str, str]]]:
    """Where each runs, and its options."""
    for daemon_set in daemon_sets:
        metadata = daemon_set["metadata"]
        for container in daemon_set["spec"]["template"]["spec"].get("containers") or ():
            command = _command(container)
            about = f"{metadata['name']} {container.get('image', '')} {command}".lower()
            is_ascend = "ascend" in about or "volcanotype" in about
            if is_ascend and re.search(r"device-?plugin", about) and "hami" not in about:
                where = f"{metadata.get('namespace', '')}/{metadata['name']}"
                yield where, {m[1]: (m[2] or "").lower() for m in _OPTION.finditer(command)}


def _command(container: Manifest) -> str:
    """All that the container runs; it is often one text that a shell reads."""
    words: list[Any] = [*(container.get("command") or ()), *(container.get("args") or ())]
    return " ".join(map(str, words))


def _check(where: str, options: dict[str, str], site: Site) -> Check:
    by_volcano = options.get("volcanoType", "false") in _TRUE
    shared = options.get("shareDevCount", "1")
    words = f"{where}: volcanoType={str(by_volcano).lower()}"
    if shared not in ("", "0", "1"):
        fix = "run the plugin with -shareDevCount=1: sharing a device distorts its durations"
        return Check(_NAME, False, f"{words}, and it offers each device {shared} times", fix)
    whole_nodes = site.devices_per_worker >= site.devices_per_node
    if by_volcano and site.scheduler != "volcano" and not whole_nodes:
        return Check(
            _NAME,
            False,
            f'{words}: it refuses pods that Volcano did not place ("not get valid pod"), unless '
            f"they take a whole node; site {site.name} has scheduler {site.scheduler}",
            "set scheduler: volcano or shape: node in the profile, or run the plugin with "
            "-volcanoType=false",
        )
    if not by_volcano and site.scheduler == "volcano":
        return Check(
            _NAME,
            False,
            f"{words}: pods get other devices than Volcano books for them",
            "run the plugin with -volcanoType=true, or set scheduler: default in the profile",
        )
    return Check(_NAME, True, words)
