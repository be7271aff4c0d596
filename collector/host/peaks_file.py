"""The file with the measured peaks of this machine's processor, one per device. It belongs to the
user: no other user may set the values that measurements are compared with."""

import logging
import os
from pathlib import Path

from collector.codec.errors import BadInput
from collector.codec.files import read_small_file
from collector.model.peaks import MachinePeaks, peaks_from_bytes
from collector.model.stack import Stack

logger = logging.getLogger(__name__)

_VARIABLE = "OPMETER_PEAKS"
_CACHE = "XDG_CACHE_HOME"
_AGAIN = (
    "`opmeter selftest cpu` measures them again; until then the default peaks of this cpu apply"
)


def path_of_peaks(stack: Stack) -> Path:
    """Return the path of a device's peaks: in OPMETER_PEAKS, or in a folder of the user's cache."""
    cache = Path(os.environ.get(_CACHE) or os.path.expanduser("~/.cache"))
    folder = Path(os.environ.get(_VARIABLE) or cache / "opmeter" / "peaks")
    return folder / f"{stack.device}.json"


def stored_peaks(stack: Stack) -> MachinePeaks | None:
    """Return the stored peaks of this machine with a stack. None, with a line in the log, if the
    file is damaged or of another stack; None without a line if there is no file."""
    path = path_of_peaks(stack)
    try:
        peaks = peaks_from_bytes(read_small_file(path), key=str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (BadInput, OSError) as error:
        logger.warning("%s; %s", error, _AGAIN)
        return None
    if peaks.stack != stack:
        others = peaks.stack.differs_in(stack)
        logger.warning("%s: measured with another %s; %s", path, others, _AGAIN)
        return None
    return peaks
