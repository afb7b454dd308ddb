"""The ways in which setting up or running a step ends without a result."""

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Missing(Exception):
    """Something that the machine has to offer is not there.

    Args:
        what: The thing, as a short phrase.
        why: What needs it.
        remedy: What the reader can do about it.
    """

    what: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}\n  why: {self.why}\n  do:  {self.remedy}"


@dataclass
class StepFailed(Exception):
    """A command that had to succeed did not; its output is in a log file."""

    step: str
    exit_code: int
    log: Path
    tail: str

    def __str__(self) -> str:
        lines = "\n".join(f"  | {line}" for line in self.tail.splitlines())
        return f"{self.step} failed with exit code {self.exit_code}; the end of its output:\n{lines}\n  log: {self.log}"


class Usage(Exception):
    """The command line asks for something that does not exist."""
