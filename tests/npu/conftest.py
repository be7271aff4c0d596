"""The tier that runs the stock torch_npu on a CANN that only records (fakecann/)."""

import pytest

from collector.engine.wheel import NoRecordingRuntime
from tests.lacking import lacking
from tests.npu.fakecann.build import FakeCann, build_fake_cann


@pytest.fixture(scope="session")
def fake() -> FakeCann:
    """The fake CANN. If it is not available the test is skipped with the reason; under CI, or with
    OPMETER_NO_SKIP=1, it fails."""
    try:
        return build_fake_cann()
    except NoRecordingRuntime as error:
        lacking(str(error))
