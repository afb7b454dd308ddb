"""Type of the commands of a parser."""

from __future__ import annotations

import argparse
from typing import TypeAlias

from fib_schema.command_parser import CommandParser

Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"  # noqa: SLF001 - it has no public name
