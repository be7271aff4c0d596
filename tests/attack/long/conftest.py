"""Fixtures of the tests of the test tools."""

from tests.npu import conftest as of_npus

fake = of_npus.fake
