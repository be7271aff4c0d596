"""Filter files with Spark: `python -m tests.unit.collector.database.spark_rows REQUESTS FOUND`.

A process of its own, because Spark leaves sockets open. REQUESTS is a list of [files, filters], and
a filter [column, sign, value]; FOUND gets, for each request, the rows of each filter."""

import importlib
import json
import sys
from pathlib import Path

NAMES = ("device", "version", "case", "kernel_type", "mean_us")
_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def main(requests: Path, found: Path) -> None:
    builder = importlib.import_module("pyspark.sql").SparkSession.builder
    session = builder.master("local[1]").config(map=_SETTINGS).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    answers = []
    for files, filters in json.loads(requests.read_text()):
        frame = session.read.parquet(*files).select(
            *NAMES, *{name for name, *_ in filters} - {*NAMES}
        )
        answers.append([])
        for name, sign, value in filters:
            chosen = frame.filter(frame[name] == value if sign == "=" else frame[name] > value)
            answers[-1].append([list(row) for row in chosen.select(*NAMES).collect()])
    found.write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
