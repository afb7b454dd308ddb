"""Verdicts: what is wrong with the outcome of a case."""

import re

_FRAME = re.compile(r'File "[^"]*/(?:packages/fib-|site-packages/|python3\.\d+/)[^"]*"')
_FOLDER = re.compile(r"/\S*/(?:light|heavy)/\d+/")
"""The folder of a case, which differs where the problem is the same."""
_RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_RUN_NAMES = ("could not run: victim / ", '"is_failure": true')
"""Words with which `run` names a workload or a definition that it cannot use; the keeper can be used."""
_FLOOD_BYTES = 200_000
"""Output to a person: beyond this, nobody reads it."""


def problems(kind, command, outcome):
    """Say what is wrong, each in a few words; the first word is the class of the problem."""
    output = outcome.output
    if outcome.code is None:
        yield f"hang: more than {command.seconds:.0f} s"
        return
    if outcome.code < 0:
        yield f"crash: signal {-outcome.code}"
    if "Traceback (most recent call last)" in output and _FRAME.search(output):
        yield "traceback: " + _last_line(output)
    elif outcome.code >= 0:
        yield from _broken_promises(kind, command, outcome)
    if not command.is_machine_readable and command.function is None:  # an engine's output is its own
        if raw := _RAW.search(output):
            yield f"raw: {raw.group()!r} in the output"
        if raw := _BIDI.search(outcome.page):
            yield f"raw: {raw.group()!r} in the page"
        if len(output) > _FLOOD_BYTES:
            yield f"flood: {len(output) // 1000} kB of output"


def _broken_promises(kind, command, outcome):
    if outcome.code not in command.codes:
        yield f"code: {outcome.code} is not documented"
    if "validate" in command.words and command.reads:
        yield from _wrong_code(kind, outcome)
    # JSON doubles the backslash of an escaped name.
    said = outcome.output + outcome.output.replace("\\\\", "\\") if "\\" in outcome.output else outcome.output
    said += outcome.page if command.writes.endswith(".txt") else ""
    named = (*kind.named, *_RUN_NAMES) if kind.shows_when == "used" and "run" in command.words else kind.named
    if _must_name(kind, command, outcome) and not any(text in said for text in named):
        yield f"unnamed: none of {', '.join(kind.named)} in the output"
    if kind.keeps_rest and not outcome.is_shown:
        yield f"rest: the keeper was not processed; {_last_line(outcome.output)}"


def _wrong_code(kind, outcome):
    if kind.is_error is None:
        return
    if kind.is_error != (outcome.code != 0):
        yield f"code: {outcome.code}, but the set has {'an error' if kind.is_error else 'none'}"
    elif kind.keeps_rest and outcome.code == 2:
        yield "code: 2, although the command is valid and the rest of the set is healthy"


def _must_name(kind, command, outcome):
    is_validate = "validate" in command.words and kind.part in command.reads
    if not kind.named:
        return False
    if kind.shows_when == "validated":
        return is_validate
    if kind.is_error is None:
        return is_validate and (kind.is_warned or outcome.code != 0)
    if kind.part == "set":
        return command.is_execution or kind.shows_when != "used"
    if kind.part in command.lists:
        return kind.shows_when == "listed"
    return kind.part in command.reads and (command.is_execution or kind.shows_when != "used")


def _last_line(output):
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return _FOLDER.sub("", lines[-1])[:160] if lines else "no output"
