"""The option ``--dataset`` of commands that take a file or a name first, and the data set that it means."""

from __future__ import annotations

import argparse
from pathlib import Path

from fib_schema import DataSetNotFound, get_fib_dataset_path

from ..errors import NoDataSetNamed

_DEFINITIONS = "definitions"


def add_data_set_option(parser: argparse.ArgumentParser) -> None:
    """Declare ``--dataset``."""
    text = "the data set (default: this folder if it is one, else FIB_DATASET_PATH)"
    parser.add_argument("--dataset", metavar="DIR", type=Path, help=text)


def data_set_of(arguments: argparse.Namespace) -> Path:
    """The data set that a command is about.

    Raises:
        DataSetNotFound: There is none at the path that was passed.
        NoDataSetNamed: No path was passed, and there is none at the default.
    """
    given: Path | None = arguments.dataset
    if given is not None:
        if not given.is_dir():
            raise DataSetNotFound(str(given))
        return given
    here = Path()
    default = here if (here / _DEFINITIONS).is_dir() else get_fib_dataset_path()
    if not default.is_dir():
        raise NoDataSetNamed(str(default))
    return default
