"""What git knows: which files a change touches, and which releases there are."""

import re
import subprocess
from pathlib import Path

from workshop.errors import Missing, Usage

_FULL_HASH = re.compile(r"[0-9a-f]{40}")
_NO_COMMIT = "0" * 40  # what a forge names as the commit before the first one of a branch
_TRUNKS = ("origin/main", "main")


def changed_files(root: Path, base: str | None) -> tuple[str, ...] | None:
    """The files below `root` that differ from where this branch left `base`, uncommitted and untracked ones included.

    Args:
        root: The checkout. It may lie within a larger repository.
        base: A branch, tag or commit; None for the main branch. Empty, or all zeros, where there is no commit before.

    Returns:
        Paths relative to `root`; None where there is nothing to compare with, because the history was rewritten or
        has no earlier commit.

    Raises:
        Usage: No branch, tag or commit has this name.
        Missing: Git is missing, or this is no repository.
    """
    start = fork_point(root, base)
    if start is None:
        return None
    # A moved file counts at both of its places.
    differing = git(root, "diff", "--name-only", "--no-renames", "--no-ext-diff", "--relative", "-z", start)
    untracked = git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return tuple(sorted({path for path in (differing + untracked).split("\0") if path}))


def fork_point(root: Path, base: str | None) -> str | None:
    """The last commit that this branch shares with `base`, or None where there is none."""
    if base is None:
        base = next((trunk for trunk in _TRUNKS if find_commit(root, trunk)), _TRUNKS[-1])
    if base in ("", _NO_COMMIT):
        return None
    if find_commit(root, base) is None:
        if _FULL_HASH.fullmatch(base):
            return None  # a forced push has removed it
        raise Usage(f"no branch, tag or commit {base!r} in {root} (to fetch what the remote has: git fetch --tags)")
    # Without common history git ends with 1, and with nothing on its output.
    return git(root, "merge-base", base, "HEAD", accept=(0, 1)).strip() or None


def find_commit(root: Path, name: str) -> str | None:
    """The hash of the commit that a branch, tag or hash names, or None."""
    wanted = f"{name}^{{commit}}"
    return git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", wanted, accept=(0, 1)).strip() or None


def tracked_files(folder: Path) -> frozenset[str]:
    """The files in a folder that git tracks and that are there, relative to it."""
    names = git(folder, "ls-files", "-z").split("\0")
    return frozenset(name for name in names if name and (folder / name).is_file())


def tags(root: Path, prefix: str) -> tuple[str, ...]:
    """The tags that begin with `prefix`."""
    return tuple(git(root, "tag", "--list", f"{prefix}*").splitlines())


def git(root: Path, *arguments: str, accept: tuple[int, ...] = (0,)) -> str:
    """Ask git, and return what it prints.

    Raises:
        Missing: Git is not installed, or ended with a code that is not accepted.
    """
    try:
        answer = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise _missing("git is missing from the path.", "install git.") from None
    if answer.returncode not in accept:
        what = f"`git {arguments[0]}` failed in {root}: {answer.stderr.strip()}"
        raise _missing(what, "run this in a clone of the repository that git trusts.")
    return answer.stdout


def _missing(what: str, remedy: str) -> Missing:
    return Missing(what, "git says which files a change touches, and which releases there are.", remedy)
