import pytest
from devtools import rules
from devtools.rules import commit_problems, subject_problem


@pytest.mark.parametrize(
    "subject", ["Add a command", "Pass seeds to workers", "Feed the cache", "Re-export names", "A" + "d" * 71]
)
def test_an_imperative_subject_passes(subject):
    assert subject_problem(subject) is None


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        ("A" + "d" * 72, "73 characters; the limit is 72"),
        ("Added a command", "use the imperative"),
        ("Adds a command", "use the imperative"),
        ("Adding a command", "use the imperative"),
        ("add a command", "begin with a capitalized verb"),
        ("fib-bench: add a command", "begin with a capitalized verb"),
        ("Add a command.", "ends with a period"),
    ],
)
def test_another_subject_is_explained(subject, problem):
    assert problem in subject_problem(subject)


def test_only_commits_after_the_rule_are_checked(repository, monkeypatch):
    repository.commit("old: not checked")
    monkeypatch.setattr(rules, "LAST_COMMIT_BEFORE_RULE", repository.git("rev-parse", "HEAD"))
    repository.commit("Add a")
    repository.commit("Adds b")
    (problem,) = commit_problems(repository.root)
    assert "Adds b: " in problem


def test_a_history_without_the_base_has_its_last_commit_checked(repository):
    repository.commit("Adds b")
    assert len(commit_problems(repository.root)) == 1
