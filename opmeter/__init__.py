"""Durations of operators, measured on devices: read a database, and query it.

import opmeter
db = opmeter.open("s3://bucket/prefix")
version = db.directory_of("ATLAS_800_A3_752T_128G_DIE", vllm="0.18.0")
version.query("MatMulV2", [(32, 5120), (5120, 3200)], "bf16")
"""

from collector.codec.errors import OpmeterError
from opmeter.accuracy import KernelAccuracy
from opmeter.answers import Answer, Channel, ExplainedRow, Explanation, Reason
from opmeter.contents import CaseGroup
from opmeter.database import Database, open
from opmeter.misses import MissLog
from opmeter.version import Version

__all__ = [
    "Answer",
    "CaseGroup",
    "Channel",
    "Database",
    "ExplainedRow",
    "Explanation",
    "KernelAccuracy",
    "MissLog",
    "OpmeterError",
    "Reason",
    "Version",
    "open",
]
