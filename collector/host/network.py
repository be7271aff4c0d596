"""How this machine reaches the other nodes of a gang: its interface, and the ports of its NPUs.

NPUs of several nodes exchange data over network ports of their own, which only `hccn_tool` of the
driver shows. Its output (HCCL's documentation of failed connections and MindCluster's device
plugin, 2026-08; it was not checked on a device):

    link status: UP
    dev_id:0, tls switch[0](0:disable, 1:enable), tls alarm time threshold[60]days

A container has the tool only if it is mounted, and it may refuse a user who is not root: a state
that it does not print is unknown, and no reason to end anything. Nodes of a super-pod do not use
these ports among themselves.
"""

import fcntl
import os
import re
import shutil
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence

from collector.codec.errors import HostFault
from collector.host.machine import this_node
from collector.host.npus import list_npus
from collector.host.processes import tool_output

_INTERFACE = "GLOO_SOCKET_IFNAME"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_SUPER_POD = "OPMETER_SUPER_POD"
_TOOL = "/usr/local/Ascend/driver/tools/hccn_tool"
_LINK = re.compile(r"link status\s*:\s*(\w+)", re.IGNORECASE)
_TLS = re.compile(r"tls switch\[(\d)\]|(no certificate found)", re.IGNORECASE)
_BUSY = "is busy"  # it serves one caller at a time
_TRIES, _PAUSE_S = 5, 1.0


def interface_address(environment: Mapping[str, str] = os.environ) -> str:
    """Return the IPv4 address of the interface that GLOO_SOCKET_IFNAME names; empty if it is unset.

    Raises HostFault if this machine has no such interface, or the interface has no address."""
    name = environment.get(_INTERFACE, "")
    if not name:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("256s", name.encode()[:15])
        try:
            reply = fcntl.ioctl(any_socket.fileno(), _GET_ADDRESS, request)
        except OSError as error:
            there = ", ".join(known for _, known in socket.if_nameindex())
            raise HostFault(
                f"{this_node(environment)}: interface {name} ({_INTERFACE}, host_ip_interface of a "
                f"site) has no IPv4 address: {error.strerror}; this machine has {there}"
            ) from error
    return socket.inet_ntoa(reply[20:24])


def check_links(count: int, environment: Mapping[str, str] = os.environ) -> None:
    """Raise HostFault if the port of one of the first `count` NPUs has no link."""
    if environment.get(_SUPER_POD):
        return
    down = [
        npu
        for npu, said in _reported("-link", count)
        if (found := _LINK.search(said)) and found[1].upper() == "DOWN"
    ]
    if down:
        listed = ", ".join(map(str, down))
        raise HostFault(
            f"{this_node(environment)}: link status DOWN of the network port of NPU {listed}, "
            f"which reaches no other node: check cable and switch (hccn_tool -i {down[0]} -link -g)"
        )


def tls_switches(count: int | None = None) -> str:
    """Return the state of the TLS switch of the first `count` NPUs' ports: `off`, `on`, or both;
    empty if it is unknown. Ports connect only if both have the same state."""
    found = (_TLS.search(said) for _, said in _reported("-tls", count))
    return " and ".join(sorted({"on" if one[1] == "1" else "off" for one in found if one}))


def tls_problem(states: Sequence[tuple[str, str]]) -> str:
    """Return why the ports of nodes, each with the state of its TLS switches, would not connect;
    empty if they would. An unknown state is no reason."""
    known = {one for _, state in states for one in state.split(" and ") if one}
    if len(known) < 2:
        return ""
    listed = "; ".join(f"{node}: {state or 'unknown'}" for node, state in dict.fromkeys(states))
    return (
        "the TLS switch of NPUs' network ports differs, and such ports do not connect: "
        f"{listed}; set the same on all, such as hccn_tool -i 0 -tls -s enable 0"
    )


def _reported(query: str, count: int | None) -> Iterator[tuple[int, str]]:
    """Yield what the tool says of each NPU, by its index among all NPUs of the machine."""
    tool = shutil.which("hccn_tool") or shutil.which(_TOOL)
    for npu in list_npus()[:count] if tool and shutil.which("npu-smi") else ():
        said = ""
        for _ in range(_TRIES):
            said = tool_output("npu", str(tool), "-i", str(npu.physical), query, "-g")
            if _BUSY not in said:
                break
            time.sleep(_PAUSE_S)
        yield npu.physical, said
