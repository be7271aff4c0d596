"""`python -m tests.npu.record [KERNEL...]`: writes anew what the stock torch_npu launches for each
fixture row (all kernels, or those named). Read the difference before it is committed."""

import sys

from tests.npu.fakecann.build import build
from tests.npu.golden import FOLDER, golden_path, golden_text
from tests.npu.replayed import kernels_with_rows, replay


def main(kernels: list[str]) -> int:
    """Record; 1 where a row cannot be replayed."""
    wanted = kernels or kernels_with_rows()
    failed = 0
    FOLDER.mkdir(exist_ok=True)
    for kernel, rows in replay(build(), wanted).items():
        golden_path(kernel).write_text(golden_text(kernel, rows))
        for row in rows:
            failed += bool(row.error)
            if row.error:
                print(f"{row.case.describe()}: {row.error}", file=sys.stderr)
    print(f"{len(wanted)} kernels recorded in {FOLDER}, {failed} rows failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
