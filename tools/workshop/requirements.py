"""What a manifest asks for: requirements and release numbers, as far as our own manifests write them."""

import re
from dataclasses import dataclass
from itertools import zip_longest
from operator import eq, ge, gt, le, lt, ne

from workshop.checkout import requirement_name
from workshop.errors import Usage

_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+\s*(\[(?P<extras>[^\]]*)\])?\s*(?P<clauses>[^;@]*?)\s*(;\s*(?P<marker>.+))?")
_CLAUSE = re.compile(r"(?P<operator>>=|<=|==|!=|~=|>|<)\s*(?P<bound>\d+(\.\d+)*(\.\*)?)")
_RELEASE = re.compile(r"\d+(\.\d+)*")
_COMPARISONS = {">=": ge, "<=": le, ">": gt, "<": lt, "==": eq, "!=": ne}


@dataclass(frozen=True)
class Requirement:
    """One line of a list of dependencies.

    Args:
        name: The normalised name of the distribution.
        extras: The extras that are asked for.
        clauses: Pairs of operator and bound; all of them have to hold.
        marker: When the requirement applies; empty for always.
    """

    name: str
    extras: frozenset[str]
    clauses: frozenset[tuple[str, str]]
    marker: str = ""

    @property
    def lowest(self) -> str | None:
        """The oldest version it admits, as written; None where it names none."""
        bounds = [bound for operator, bound in self.clauses if operator in (">=", "~=", "==") and "*" not in bound]
        return max(bounds, key=release, default=None)

    def admits(self, version: str) -> bool:
        """Whether a release satisfies all clauses."""
        return all(_holds(operator, bound, version) for operator, bound in self.clauses)

    def __str__(self) -> str:
        extras = f"[{','.join(sorted(self.extras))}]" if self.extras else ""
        lower_first = sorted(self.clauses, key=lambda clause: (clause[0].startswith("<"), clause))
        return f"{self.name}{extras}{','.join(operator + bound for operator, bound in lower_first)}"


def parse_requirement(text: str) -> Requirement:
    """Read `name[extra]>=1.0,<2 ; marker`.

    Raises:
        Usage: The text is something else: an address, or a bound that is no plain release number.
    """
    match = _REQUIREMENT.fullmatch(text.strip())
    parts = [part.strip() for part in match["clauses"].split(",") if part.strip()] if match else []
    clauses = [_CLAUSE.fullmatch(part) for part in parts]
    if match is None or None in clauses:
        raise Usage(f"cannot read the requirement {text!r} (wanted: name[extra]>=1.0,<2 ; marker)")
    extras = frozenset(requirement_name(extra) for extra in (match["extras"] or "").split(",") if extra.strip())
    pairs = frozenset((clause["operator"], clause["bound"]) for clause in clauses if clause)
    return Requirement(requirement_name(text), extras, pairs, (match["marker"] or "").strip())


def release(version: str) -> tuple[int, ...]:
    """The numbers of a release, without zeros at the end: `1.2` and `1.2.0` are the same.

    Raises:
        Usage: The version has other parts than numbers.
    """
    if _RELEASE.fullmatch(version) is None:
        raise Usage(f"{version!r} is no plain release number such as 1.2.3")
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _holds(operator: str, bound: str, version: str) -> bool:
    if bound.endswith(".*"):
        return _starts_with(version, bound.removesuffix(".*")) is (operator == "==")
    if operator == "~=":
        return release(version) >= release(bound) and _starts_with(version, bound.rpartition(".")[0])
    return bool(_COMPARISONS[operator](release(version), release(bound)))


def _starts_with(version: str, prefix: str) -> bool:
    wanted = [int(part) for part in prefix.split(".")]
    pairs = zip_longest(release(version), wanted, fillvalue=0)
    return all(found == number for found, number in list(pairs)[: len(wanted)])
