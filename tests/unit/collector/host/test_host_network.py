"""The connection of this machine to other nodes, from a fake `hccn_tool` and its own interfaces."""

import socket
import subprocess
from dataclasses import dataclass

import pytest

from collector.codec.errors import HostFault
from collector.comm import gang, rank_files
from collector.comm.gang import GangWork, Rendezvous, run_gang
from collector.host import network
from collector.host.network import check_links, interface_address, tls_switches
from tests.unit.collector.host.test_host_npus import A2
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

TLS = "dev_id:0, tls switch[{}](0:disable, 1:enable), tls alarm time threshold[60]days\\n"
CERTIFICATE = "dev_id:0, [pub cert] info:\\n\\t issuer[/C=CN/O=HUAWEI]\\n"
NONE = "no certificate found"


@pytest.fixture
def hccn(tmp_path, monkeypatch):
    """Put an npu-smi with two NPUs and an hccn_tool on PATH: `say(query, of NPU 0, of NPU 1)`."""
    (tmp_path / "npus").write_text(A2.replace("Warning", "OK     "))
    (tmp_path / "npu-smi").write_text(f"#!/bin/sh\ncat {tmp_path}/npus\n")
    script = f'#!/bin/sh\n[ "$4" = -g ] && printf "$(cat {tmp_path}/$3.$2)\\n"\n'
    (tmp_path / "hccn_tool").write_text(script)
    for name in ("npu-smi", "hccn_tool"):
        (tmp_path / name).chmod(0o755)
    for name in ("ASCEND_RT_VISIBLE_DEVICES", "OPMETER_SUPER_POD", "NODE_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(network, "_PAUSE_S", 0.0)

    def say(query, *answers):
        for npu, answer in enumerate(answers):
            (tmp_path / f"{query}.{npu}").write_text(answer)

    return say


def test_port_without_a_link_is_reported_with_its_node(hccn):
    hccn("-link", "link status: UP", "link status: UP")
    check_links(2)
    hccn("-link", "link status: UP", "link status: DOWN")
    with pytest.raises(HostFault, match=naming("n7", "NPU 1", "DOWN", "hccn_tool -i 1 -link -g")):
        check_links(2, {"NODE_NAME": "n7"})
    check_links(1)  # a gang that does not use it
    check_links(2, {"OPMETER_SUPER_POD": "1"})  # its nodes have another network


def test_ports_have_one_tls_state_or_both(hccn):
    states = {"off": ("0", "0"), "on": ("1", "1"), "off and on": ("1", "0")}
    for state, (first, second) in states.items():
        hccn("-tls", TLS.format(first) + CERTIFICATE, TLS.format(second))
        assert tls_switches() == state
    hccn("-tls", NONE, TLS.format("0"))
    assert tls_switches() == "off"


def test_unreadable_port_state_is_not_a_fault(hccn, monkeypatch):
    for message in ("permission denied", "hccn_tool is busy, please try again", ""):
        for query in ("-link", "-tls"):
            hccn(query, message, message)
        check_links(2)
        assert tls_switches() == ""
    monkeypatch.setenv("PATH", "/nowhere")
    check_links(2)
    assert tls_switches() == ""


def test_interface_without_an_address_is_reported_with_the_existing_ones():
    assert interface_address({}) == ""
    assert interface_address({"GLOO_SOCKET_IFNAME": "lo"}) == "127.0.0.1"
    there = [name for _, name in socket.if_nameindex()]
    with pytest.raises(HostFault, match=naming("n7", "bond9", "host_ip_interface", *there)):
        interface_address({"GLOO_SOCKET_IFNAME": "bond9", "NODE_NAME": "n7"})


@dataclass(frozen=True)
class NpuPlan:
    """Return the plan of a gang that no rank reads."""

    backend: str = "npu"

    def to_json(self) -> str:
        return "{}"


def test_multi_node_gang_starts_ranks_with_links_up_and_their_address(hccn, tmp_path, monkeypatch):
    begun, usual = [], subprocess.Popen

    def begin(*command, env=None, **options):
        if env is None:  # a tool
            return usual(*command, **options)
        begun.append(env.get("HCCL_IF_IP"))
        raise InterruptedError

    monkeypatch.setattr(subprocess, "Popen", begin)
    monkeypatch.setattr(gang, "installed_vllm", lambda: "")
    monkeypatch.setattr(gang, "check_health", lambda count: None)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    alone, together = Rendezvous(2), Rendezvous(2, 2, 1, "127.0.0.1", 29700)
    hccn("-link", "link status: DOWN", "link status: UP")
    with pytest.raises(HostFault, match=naming("NPU 0", "DOWN")):
        run_gang(GangWork(NpuPlan()), together, tmp_path)
    assert begun == []
    with pytest.raises(InterruptedError):  # ranks of one node do not use the ports
        run_gang(GangWork(NpuPlan()), alone, tmp_path)
    hccn("-link", "link status: UP", "link status: UP")
    with pytest.raises(InterruptedError):
        run_gang(GangWork(NpuPlan(), nodes_agree=True), together, tmp_path)
    assert not (tmp_path / rank_files.TLS).exists()  # nor is the tool called
    with pytest.raises(InterruptedError):
        run_gang(GangWork(NpuPlan()), together, tmp_path)
    assert (tmp_path / rank_files.TLS).exists()
    assert begun == [None, "127.0.0.1", "127.0.0.1"]
