"""A target that names this host may omit the values that the host provides."""

import os

import pytest

from collector.codec.errors import BadInput
from jobs.campaign.campaign_file import campaign_from_text
from jobs.campaign.target import resolve_stack
from tests.npu.fakecann.build import environment

pytestmark = [pytest.mark.npu]

TEXT = "campaign: c\nsources: [{bundled: quickstart}]\nbackend: npu\ntarget: {device: %s}\n"


@pytest.fixture
def host(fake, tmp_path, monkeypatch):
    """A host with one 910B3."""
    (tmp_path / "version.info").write_text("version=8.5.0\n")
    env = environment(fake) | {"ASCEND_TOOLKIT_HOME": str(tmp_path)}
    for name in ("PATH", "FAKE_NPU_COUNT", "ASCEND_TOOLKIT_HOME"):
        monkeypatch.setenv(name, env[name])
    monkeypatch.syspath_prepend(str(fake.site))
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)


def campaign(device):
    return campaign_from_text(TEXT % device, path="c.yaml", base=None)


def test_host_completes_a_target_of_its_own_device(host):
    stack = resolve_stack(campaign("ATLAS_800_A2_313T_64G"))
    assert (stack.cann, stack.driver, stack.torch_npu) == ("8.5.0", "24.1.rc2", "2.13.0")
    assert os.environ["FAKE_NPU_COUNT"] == "1"


def test_target_of_another_device_is_refused_with_a_hint(host):
    with pytest.raises(BadInput, match="opmeter stack"):
        resolve_stack(campaign("ATLAS_800_A2_376T_64G"))
