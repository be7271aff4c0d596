"""A device has one holder, whose name is told to others and whose death frees it."""

import os
import subprocess
import sys

import pytest

from collector.errors import DeviceBusy
from collector.replay.lock import DeviceLock


@pytest.mark.fast
def test_a_busy_device_names_its_holder(tmp_path):
    with DeviceLock("cpu0", "campaign first", tmp_path):
        with pytest.raises(DeviceBusy) as refused, DeviceLock("cpu0", "second", tmp_path):
            pass
        assert f"cpu0 is in use by process {os.getpid()} (campaign first:" in str(refused.value)
        with DeviceLock("cpu1", "another device", tmp_path):
            pass
    with DeviceLock("cpu0", "third", tmp_path):
        pass


def test_a_dead_holder_frees_the_device(tmp_path):
    code = (
        "import os, sys; from pathlib import Path\n"
        "from collector.replay.lock import DeviceLock\n"
        "DeviceLock('cpu0', 'campaign dead', Path(sys.argv[1])).__enter__()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    with DeviceLock("cpu0", "next", tmp_path):
        assert "next" in (tmp_path / "cpu0.lock").read_text()
