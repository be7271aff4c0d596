"""Options that take words up to the next option, as the first design's scripts did:
`--num-devices 16 2` beside `--num-devices 16 --num-devices 2`."""

from collections.abc import Collection, Iterable, Iterator


def repeated(words: Iterable[str], lists: Collection[str]) -> Iterator[str]:
    """The same words, with each further word of a list under its option's name again."""
    option, is_first = "", False
    for word in words:
        if word.startswith("-"):
            option, is_first = (word if word in lists else ""), True
        elif option and not is_first:
            yield option
        else:
            is_first = False
        yield word
