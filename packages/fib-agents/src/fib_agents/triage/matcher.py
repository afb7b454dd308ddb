"""Matching of triage rules with the facts of sources.

A rule of `rules.toml` has an `id`, `why` in words, a `level`, and any of these lists:

- the kinds of `facts.Kind` for Python: patterns of names with ``*`` (`fnmatch`), regular expressions for `strings`;
  a pattern of a name stands for everything below it, too: ``socket`` for ``socket.socket``;
- `native`: regular expressions for C++ and CUDA without comments, also for such code in strings of Python;
- `deciding`: regular expressions for variables, each of which counts only if a condition or the like depends on it;
- `except`: names, also with ``*``, that do not count;
- `unless`: words that make a source harmless for this rule wherever they stand in it, such as ``join`` for a thread.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from itertools import islice

import attrs
from fib_bench.authoring.errors import KernelFileError
from fib_bench.authoring.native_code import without_comments
from fib_bench.authoring.python_code import parse
from fib_schema import Definition, Solution, SourceFile

from .facts import Fact, Kind, hidden_characters
from .module_facts import Signature, facts_of

SUSPICIOUS, NOTE = "suspicious", "note"
_MAX_FINDINGS = 200
"""Limit of each rule in one file."""
_MAX_VARIABLES, _MAX_USES = 20, 50
"""Limits of the variables of one rule in one file, and of the uses of each that are looked at."""
_NEAR_CHARS = 120
"""Characters beside a use that are looked at."""
_MAX_CHARS = 300_000
"""Limit of one file; patterns take more than linear time on sources that are made for it."""
_MAX_SHOWN = 160
_FLOAT = re.compile(r"b?float(\d+)")
_LOOKS_NATIVE = re.compile(r"#\s*include|__global__|extern\s+\"C\"|TVM_FFI|PYBIND11|\basm\b")
_SIGN = r"[<>=!]=|[%&|?]|(?<![<>])[<>](?![<>])"
_DECIDING_BEFORE = re.compile(rf"(?:{_SIGN}|\b(?:if|while|switch)\s*\([^;{{}}]*|\[[^\]\n]*)\s*(?:\+\+|--|!)?\s*\Z")
_DECIDING_AFTER = re.compile(rf"\s*(?:\+\+|--|\.\w+\([^()]*\))?\s*(?:{_SIGN})")


@attrs.frozen
class Rule:
    """One rule."""

    id: str
    why: str
    level: str = SUSPICIOUS
    patterns: dict[Kind, tuple[str, ...]] = attrs.Factory(dict)
    native: tuple[re.Pattern[str], ...] = ()
    deciding: tuple[re.Pattern[str], ...] = ()
    strings: tuple[re.Pattern[str], ...] = ()
    excepted: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()

    def matches(self, fact: Fact) -> bool:
        """Whether a fact is one that the rule names."""
        if fact.kind is Kind.STRING:
            return any(pattern.search(fact.text) for pattern in self.strings)
        patterns = self.patterns.get(fact.kind, ())
        below = fact.kind is Kind.NAME
        if not any(fnmatchcase(fact.text, one) or (below and fnmatchcase(fact.text, f"{one}.*")) for one in patterns):
            return False
        return not any(fnmatchcase(fact.text, pattern) for pattern in self.excepted)

    def is_harmless_in(self, code: str) -> bool:
        """Whether the code of a source, without comments, has a word of `unless`."""
        return any(re.search(rf"\b{re.escape(word)}\b", code) for word in self.unless)


@attrs.frozen
class Finding:
    """A construct in a source that a rule names."""

    rule: str
    level: str
    """``suspicious`` or ``note``."""
    path: str
    line: int
    text: str
    """The line of the source, shortened; untrusted text."""
    why: str


@cache
def load_rules() -> tuple[Rule, ...]:
    """The rules of this version."""
    text = resources.files(__package__).joinpath("rules.toml").read_text("utf-8")
    return tuple(map(_rule, tomllib.loads(text)["rule"]))


def triage(solution: Solution, definition: Definition | None = None) -> list[Finding]:
    """The findings in all sources of a solution, by file and line.

    Args:
        solution: Its sources are read, and nothing of it runs.
        definition: With it, writes into inputs, results that are inputs and narrower types are found too.
    """
    entry = None
    if definition is not None:
        is_dps = solution.spec.destination_passing_style
        name = solution.spec.entry_point.rpartition("::")[2]
        is_alone = len(solution.sources) == 1
        entry = Signature(name, len(definition.inputs), is_dps, _least_bits(definition), is_alone)
    found = [finding for source in solution.sources for finding in _findings(source, entry)]
    return sorted(dict.fromkeys(found), key=lambda finding: (finding.path, finding.line, finding.rule))


def _least_bits(definition: Definition) -> int | None:
    """The bits of the narrowest floating type of the tensors."""
    specs = (*definition.inputs.values(), *definition.outputs.values())
    sizes = [int(match[1]) for spec in specs if (match := _FLOAT.match(spec.dtype))]
    return min(sizes, default=None)


def _rule(data: dict[str, object]) -> Rule:
    lists = {name: tuple(map(str, value)) for name, value in data.items() if isinstance(value, list)}
    return Rule(
        id=str(data["id"]),
        why=str(data["why"]),
        level=str(data.get("level", SUSPICIOUS)),
        patterns={kind: lists[kind] for kind in Kind if kind in lists and kind is not Kind.STRING},
        native=tuple(map(re.compile, lists.get("native", ()))),
        deciding=tuple(map(re.compile, lists.get("deciding", ()))),
        strings=tuple(map(re.compile, lists.get("strings", ()))),
        excepted=lists.get("except", ()),
        unless=lists.get("unless", ()),
    )


def _findings(source: SourceFile, entry: Signature | None) -> Iterator[Finding]:
    if len(source.content) > _MAX_CHARS:
        why = f"is not read: it has {len(source.content)} characters, and at most {_MAX_CHARS} are read"
        yield Finding("not-read", NOTE, source.path, 1, "", why)
        return
    lines = source.content.splitlines()
    facts = list(hidden_characters(source.content))
    native: list[tuple[int, str]] = []
    if source.path.endswith(".py"):
        try:
            facts += facts_of(parse(source), entry)
        except KernelFileError:
            return  # `check_source` reports it, and it cannot run
        native = [
            (fact.line, fact.text) for fact in facts if fact.kind is Kind.STRING and _LOOKS_NATIVE.search(fact.text)
        ]
    else:
        native = [(1, source.content)]
    code = _code_of(source, facts)
    for rule in load_rules():
        if rule.is_harmless_in(code):
            continue
        matched = [fact.line for fact in facts if rule.matches(fact)]
        matched += [line for first, text in native for line in _native_lines(rule, first, text)]
        for line in islice(dict.fromkeys(matched), _MAX_FINDINGS):
            text = lines[line - 1].strip()[:_MAX_SHOWN] if 0 < line <= len(lines) else ""
            yield Finding(rule.id, rule.level, source.path, line, text, rule.why)


def _code_of(source: SourceFile, facts: Iterable[Fact]) -> str:
    """The names and attributes of Python, or the text of C++ and CUDA without comments."""
    if not source.path.endswith(".py"):
        return without_comments(source.content)
    words = {Kind.NAME, Kind.ATTRIBUTE, Kind.STRING}
    return "\n".join(fact.text for fact in facts if fact.kind in words)


def _native_lines(rule: Rule, first: int, text: str) -> Iterable[int]:
    code = without_comments(text)
    matches = [match for pattern in rule.native for match in islice(pattern.finditer(code), _MAX_FINDINGS)]
    variables = [match for pattern in rule.deciding for match in islice(pattern.finditer(code), _MAX_VARIABLES)]
    matches += [
        match for match in variables if _decides(match[0].split()[-1], code[: match.start()] + code[match.end() :])
    ]
    return [first + code.count("\n", 0, match.start()) for match in matches]


def _decides(variable: str, code: str) -> bool:
    """Whether a condition, a comparison, a remainder, a mask or an index names a variable of C++."""
    uses = islice(re.finditer(rf"\b{re.escape(variable)}\b", code), _MAX_USES)
    return any(
        _DECIDING_BEFORE.search(code[max(use.start() - _NEAR_CHARS, 0) : use.start()])
        or _DECIDING_AFTER.match(code[use.end() : use.end() + _NEAR_CHARS])
        for use in uses
    )


def is_suspicious(findings: Sequence[Finding]) -> bool:
    """Whether any finding is more than a note."""
    return any(finding.level == SUSPICIOUS for finding in findings)
