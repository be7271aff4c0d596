"""Start and stop the profilers of serving instances by their HTTP endpoints.

vLLM, vLLM-Ascend and SGLang answer POST on `/start_profile` and `/stop_profile`. A proxy in front
of prefill and decode instances forwards neither, so each instance is named. The endpoints of vLLM
exist only if the server was started with a profiler (`vllm/entrypoints/serve/profile/api_router.py`
of 0.18.0).
"""

import json
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from collector.codec.errors import BadInput

START, STOP = "/start_profile", "/stop_profile"
_CONNECT_S = 30.0
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")  # a name, or an address of IPv4 or IPv6
_FLAGS = (
    "start vLLM with --profiler-config.profiler=torch --profiler-config.torch_profiler_dir=DIR "
    "(before 0.13: VLLM_TORCH_PROFILER_DIR=DIR); ask the instances, not a proxy"
)
_SGLANG = "ask the instances, not a router"


@dataclass(frozen=True, slots=True)
class InstanceReply:
    """The answer of one instance to one request; `fault` is empty if it did as requested."""

    url: str
    path: str
    fault: str
    took_s: float

    def __str__(self) -> str:
        how = self.fault or f"done in {self.took_s:.1f} s"
        return f"{self.url}{self.path}: {how}"


def capture_instances(
    urls: Sequence[str],
    seconds: float,
    *,
    limit_s: float,
    wait: Callable[[float], None] = time.sleep,
    is_sglang: bool = False,
    folder: str = "",
) -> list[InstanceReply]:
    """Start the profilers of all instances, wait, and stop them; return every answer.

    If one instance does not start, those that did are stopped at once, because a capture without
    one of them is no step of the whole. `limit_s` limits each stop, during which an instance
    analyses its capture and serves nothing. SGLang writes to `folder`, with shapes.

    Raises BadInput for addresses that are none."""
    addresses = list(dict.fromkeys(map(_address, urls)))
    body: dict[str, object] = {}
    if is_sglang:  # sglang/srt/managers/io_struct.py: ProfileReqInput
        # Stacks, its default, are in no row, and crash torch_npu 2.10.0.post4 (vllm-ascend #15697).
        body = {"activities": ["CPU", "GPU"], "record_shapes": True, "with_stack": False}
        body |= {"output_dir": folder} if folder else {}
    with ThreadPoolExecutor(len(addresses)) as pool:
        started: list[InstanceReply] = []
        stopped: list[InstanceReply] = []
        try:
            started += pool.map(
                lambda url: _post(url, START, body, _CONNECT_S, is_sglang), addresses
            )
            if not any(one.fault for one in started):
                wait(seconds)
        finally:  # also if it is interrupted: no profiler is left running
            running = [one.url for one in started if not one.fault] if started else addresses
            stopped += pool.map(lambda url: _post(url, STOP, {}, limit_s, is_sglang), running)
    return [*started, *stopped]


def _address(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        is_known = parts.scheme in ("http", "https") and (parts.port is None or parts.port > 0)
    except ValueError:  # no number, or too large
        is_known = False
    if not is_known or not _HOST.fullmatch(parts.hostname or ""):
        raise BadInput(f"expected http://HOST:PORT of an instance, got {url!r}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _post(
    url: str, path: str, body: dict[str, object], limit_s: float, is_sglang: bool
) -> InstanceReply:
    began_s = time.monotonic()
    request = Request(
        url + path,
        data=json.dumps(body).encode() if body else b"",
        headers={"Content-Type": "application/json"} if body else {},
        method="POST",
    )
    fault = ""
    try:
        with urlopen(request, timeout=limit_s) as answer:
            answer.read(1 << 20)
    except HTTPError as error:
        fault = f"HTTP {error.code}"
        if error.code in (404, 405):
            fault += f": this server has no profiler: {_SGLANG if is_sglang else _FLAGS}"
    except TimeoutError:
        fault = f"no answer within {limit_s:g} s; its capture may still be analysed"
    except HTTPException as error:
        fault = f"no answer in HTTP: {error!r}"
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        is_late = isinstance(reason, TimeoutError)
        fault = f"no answer within {limit_s:g} s" if is_late else f"no answer: {reason}"
    return InstanceReply(url, path, fault, time.monotonic() - began_s)
