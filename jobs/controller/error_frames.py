"""What a log may tell of an error that nobody foresaw: where, and of which kind.

Not its words: they may hold what was being read, and a file that a campaign named is nobody's to
be told of.
"""

import traceback


def frames_of(error: BaseException) -> str:
    """The chain of errors, the one that was raised first at the top: the frames and the kind of
    each, without messages."""
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = f"{frames_of(earlier)}\nthen\n" if earlier else ""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{before}{frames}{type(error).__name__}"
