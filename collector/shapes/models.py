"""Where a model's name leads: to a file that comes along, or to a `config.json` of a user's.

The bundled models are such files with the keys that are read, from the models' own pages; a file of
a user's is read the same way, without network and without running anything of it.
"""

from importlib.resources import files
from pathlib import Path

from collector.errors import BadInput
from collector.printable import in_one_line
from collector.profiles.small_file import read_small_file
from collector.shapes.decoder import Decoder
from collector.shapes.decoder_config import read_config


def bundled_names() -> tuple[str, ...]:
    """The models that come with the package."""
    folder = files("collector") / "data" / "models"
    return tuple(sorted(one.name.removesuffix(".json") for one in folder.iterdir()))


def bundled_decoder(word: str) -> Decoder | None:
    """The model of a name of `bundled_names`, with or without its owner and in any case; None for
    another word. No other file is looked at."""
    name = word.rpartition("/")[2].lower()
    if name not in bundled_names():
        return None
    data = (files("collector") / "data" / "models" / f"{name}.json").read_bytes()
    return read_config(data, name=name, path=f"{name}.json")


def unknown_model(word: str) -> BadInput:
    """The error about a word that is neither a name nor a file of a model."""
    known = ", ".join(bundled_names())
    return BadInput(f"unknown model {word!r}: expected one of {known}, or a config.json")


def find_decoder(word: str) -> Decoder:
    """The model of a bundled name, of a `config.json`, or of the folder that holds one. BadInput
    for what is none."""
    path = Path(word)
    if (bundled := bundled_decoder(word)) is not None:
        return bundled
    if path.is_dir():
        return read_decoder(path / "config.json")
    if path.suffix != ".json":
        raise unknown_model(word)
    return read_decoder(path)


def read_decoder(file: Path) -> Decoder:
    """The model of a config.json, which is called by the folder that holds it."""
    data = _bytes_of(file)
    return read_config(data, name=in_one_line(file.resolve().parent.name), path=file)


def _bytes_of(file: Path) -> bytes:
    try:
        return read_small_file(file)
    except OSError as error:
        why = error.strerror or "not a regular file, or too large for a config.json"
        raise BadInput(f"cannot be read: {why}", path=file) from error
    except ValueError as error:  # a path with a NUL
        raise BadInput("cannot be read: invalid file name") from error
