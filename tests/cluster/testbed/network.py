"""The bridge that joins the host and the nodes, and each node's link to it.

Nothing is forwarded to the outside: nodes and pods reach the host's addresses on the bridge and
each other. The machine's own routes and firewall are not changed.
"""

from pathlib import Path

from tests.cluster.testbed.machine import command
from tests.cluster.testbed.settings import NoCluster, Settings


def has_bridge(settings: Settings) -> bool:
    return _has_link(settings.name)


def make_bridge(settings: Settings) -> None:
    """Make the bridge, with the host's addresses on it."""
    if has_bridge(settings):
        return
    _refuse_taken_address(settings)
    # A fixed address: else it has that of a node, and another one when that node loses power,
    # while the others use the old one for half a minute.
    _ip("link", "add", settings.name, "address", _hardware(settings, 0), "type", "bridge")
    for address in (
        f"{settings.gateway}/24",
        f"{settings.api_address}/32",
        f"{settings.dns_address}/32",
    ):
        _ip("addr", "add", address, "dev", settings.name)
    _ip("link", "set", settings.name, "up")


def join(settings: Settings, node: int, pid: int) -> None:
    """Link the network namespace of a process to the bridge, as a node of that number."""
    outside, address = _link_of(settings, node), settings.node_address(node)
    peer = ("name", "eth0", "address", _hardware(settings, node), "netns", str(pid))
    _ip("link", "add", outside, "type", "veth", "peer", *peer)
    _ip("link", "set", outside, "master", settings.name, "up")
    inside = ["nsenter", "-t", str(pid), "-n", "--"]
    for words in (
        ["ip", "link", "set", "lo", "up"],
        ["ip", "addr", "add", f"{address}/24", "dev", "eth0"],
        ["ip", "link", "set", "eth0", "up"],
        # No default route: a pod that connects to the outside fails at once.
        ["ip", "route", "add", settings.services_network, "via", settings.gateway],
        *(
            ["ip", "route", "add", settings.pods_network(n), "via", settings.node_address(n)]
            for n in range(1, settings.nodes + 1)
            if n != node
        ),
        ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"],
    ):
        command([*inside, *words])
    pods = settings.pods_network(node)
    _ip("route", "replace", pods, "via", address, "dev", settings.name)


def leave(settings: Settings, node: int) -> None:
    """Remove a node's link, unless it was removed with its namespace."""
    link = _link_of(settings, node)
    if not _has_link(link):
        return
    try:
        _ip("link", "del", link)
    except RuntimeError:
        if _has_link(link):  # the kernel removes it asynchronously: also between two reads
            raise


def remove_bridge(settings: Settings) -> None:
    """Remove the bridge, with its addresses and routes."""
    if has_bridge(settings):
        _ip("link", "del", settings.name)


def _refuse_taken_address(settings: Settings) -> None:
    networks = [settings.nodes_network, settings.services_network]
    networks += [settings.pods_network(n) for n in range(1, settings.nodes + 1)]
    for network in networks:
        taken = _ip("route", "show", "root", network).strip()
        if taken:
            raise NoCluster(f"{network} is in use here ({taken}); set OPMETER_CLUSTER=2 ... 9")


def _link_of(settings: Settings, node: int) -> str:
    return f"{settings.name}n{node}"


def _hardware(settings: Settings, host: int) -> str:
    """Return the hardware address of a node, or of the bridge (0): the same after a restart."""
    return f"02:00:00:00:{settings.number:02x}:{host:02x}"


def _has_link(name: str) -> bool:
    return Path(f"/sys/class/net/{name}").exists()


def _ip(*words: str) -> str:
    return command(["ip", *words])
