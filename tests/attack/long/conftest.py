"""What the tests of the test machinery share."""

from tests.npu import conftest as of_npus

fake = of_npus.fake
