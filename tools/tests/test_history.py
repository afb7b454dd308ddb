import pytest
from workshop.errors import Missing, Usage
from workshop.history import changed_files, find_commit, fork_point, tags, tracked_files


def test_nothing_has_changed_since_the_commit_one_stands_on(history):
    assert changed_files(history.root, "HEAD") == ()


def test_commits_edits_and_new_files_all_count_and_ignored_files_do_not(history):
    base = history.commit(".gitignore")
    history.write(".gitignore", "*.log\n")
    history.commit("committed file")
    history.write("untracked ü")
    history.write("a.log")
    assert changed_files(history.root, base) == (".gitignore", "committed file", "untracked ü")


def test_a_moved_file_counts_at_both_of_its_places(history):
    history.commit("old")
    history.git("mv", "old", "new")
    assert changed_files(history.root, "HEAD") == ("new", "old")


def test_a_branch_is_compared_with_where_it_left_the_main_one(history):
    history.git("switch", "--quiet", "--create", "topic")
    history.commit("mine")
    history.git("switch", "--quiet", "main")
    history.commit("theirs")
    history.git("switch", "--quiet", "topic")
    assert changed_files(history.root, None) == ("mine",)


def test_what_the_remote_calls_main_goes_before_a_local_branch_of_that_name(history):
    history.git("update-ref", "refs/remotes/origin/main", "HEAD")
    history.commit("pushed by nobody yet")
    assert changed_files(history.root, None) == ("pushed by nobody yet",)


def test_a_checkout_within_a_larger_repository_sees_its_own_files_alone(history):
    history.write("inner/a")
    history.write("outside")
    assert changed_files(history.root / "inner", "HEAD") == ("a",)


@pytest.mark.parametrize("base", ["", "0" * 40, "1234567890abcdef1234567890abcdef12345678"])
def test_without_an_earlier_commit_there_is_nothing_to_compare_with(history, base):
    assert changed_files(history.root, base) is None


def test_histories_that_share_nothing_cannot_be_compared(history):
    history.git("switch", "--quiet", "--orphan", "other")
    history.commit("a")
    assert fork_point(history.root, "main") is None


@pytest.mark.parametrize("name", ["mian", "--all", "HEAD~99"])
def test_a_name_that_stands_for_no_commit_is_an_error(history, name):
    with pytest.raises(Usage, match=f"no branch, tag or commit '{name}'"):
        changed_files(history.root, name)


def test_a_folder_that_is_no_repository_is_explained(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(Missing, match="not a git repository"):
        changed_files(tmp_path, None)


def test_a_machine_without_git_is_explained(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match="git is missing from the path"):
        tags(tmp_path, "a")


def test_tags_are_found_by_how_they_begin(history):
    for tag in ("fib-low-v0.1.0", "fib-low-v0.2.0", "fib-lower-v9"):
        history.git("tag", tag)
    assert set(tags(history.root, "fib-low-v")) == {"fib-low-v0.1.0", "fib-low-v0.2.0"}


def test_a_tag_with_a_message_names_its_commit(history):
    here = history.commit("a")
    history.git("tag", "--annotate", "--message=words", "a-tag")
    assert find_commit(history.root, "refs/tags/a-tag") == here
    assert find_commit(history.root, "refs/tags/other") is None


def test_tracked_files_are_those_of_the_folder_that_are_still_there(history):
    history.commit("sub/kept", "sub/gone", "other")
    history.write("sub/new")
    (history.root / "sub/gone").unlink()
    assert tracked_files(history.root / "sub") == {"kept"}
