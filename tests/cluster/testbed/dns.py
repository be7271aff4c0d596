"""A cluster's name server, as small as the tests allow; a separate program.

    python dns.py ADDRESS API_URL PKI_FOLDER

It knows the addresses of Services, headless Services, and the pods behind those by their host names
(HOST.SERVICE.NAMESPACE.svc.cluster.local). For any other name it replies at once that it does not
exist: pods do not wait for names of the outside.
"""

import json
import socket
import ssl
import struct
import sys
import threading
import time
import urllib.request
from typing import Any

_A, _IN, _TTL_S = 1, 1, 1
_FOUND, _NO_SUCH_NAME = 0x8580, 0x8583
_QUESTION_AT = 12  # after the header
_POLL_S = 0.5

Names = dict[str, list[str]]
Object = dict[str, Any]


def names_of(services: list[Object], slices: list[Object]) -> Names:
    """Return every name, and its addresses."""
    addresses = {_name(s["metadata"]["name"], s): s["spec"].get("clusterIP") for s in services}
    headless = {name for name, address in addresses.items() if address == "None"}
    names = {n: [a] if a and n not in headless else [] for n, a in addresses.items()}
    for entry in slices:
        service = _name(entry["metadata"]["labels"]["kubernetes.io/service-name"], entry)
        for endpoint in entry.get("endpoints") or []:
            if not endpoint.get("conditions", {}).get("ready", True):
                continue
            if service in headless:
                names[service] += endpoint["addresses"]
            if endpoint.get("hostname"):
                names[f"{endpoint['hostname']}.{service}"] = endpoint["addresses"]
    return names


def answer(query: bytes, names: Names) -> bytes:
    """Return the reply to one query of one question."""
    labels, at = [], _QUESTION_AT
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode().lower())
        at += 1 + query[at]
    kind = struct.unpack(">H", query[at + 1 : at + 3])[0]
    found = names.get(".".join(labels))
    addresses = (found or []) if kind == _A else []
    flags = _NO_SUCH_NAME if found is None else _FOUND
    header = query[:2] + struct.pack(">HHHHH", flags, 1, len(addresses), 0, 0)
    pointer = b"\xc0\x0c"  # the name in the question
    records = b"".join(
        pointer + struct.pack(">HHIH", _A, _IN, _TTL_S, 4) + socket.inet_aton(address)
        for address in addresses
    )
    return header + query[_QUESTION_AT : at + 5] + records


def _name(service: str, entry: Object) -> str:
    return f"{service}.{entry['metadata']['namespace']}.svc.cluster.local"


class _Directory:
    """The names from the API server, read periodically."""

    def __init__(self, api: str, pki: str):
        self.names: Names = {}
        self._api = api
        self._context = ssl.create_default_context(cafile=f"{pki}/ca.crt")
        self._context.load_cert_chain(f"{pki}/admin.crt", f"{pki}/admin.key")
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._context)
        )

    def follow(self) -> None:
        while True:
            try:
                services = self._items("/api/v1/services")
                slices = self._items("/apis/discovery.k8s.io/v1/endpointslices")
                self.names = names_of(services, slices)
            except (
                OSError,
                ValueError,
                KeyError,
            ) as error:  # the API server may be down for a while
                print("the API server does not answer:", error, flush=True)
            time.sleep(_POLL_S)

    def _items(self, path: str) -> list[Object]:
        with self._opener.open(self._api + path, timeout=5) as reply:
            items: list[Object] = json.load(reply)["items"]
        return items


def _serve(address: str, directory: _Directory) -> None:
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 53))
    while True:
        query, client = server.recvfrom(2048)
        try:
            server.sendto(answer(query, directory.names), client)
        except (IndexError, ValueError, struct.error, OSError) as error:
            print("no answer to a query:", error, flush=True)


if __name__ == "__main__":
    directory = _Directory(sys.argv[2], sys.argv[3])
    threading.Thread(target=directory.follow, daemon=True).start()
    _serve(sys.argv[1], directory)
