import json

import pytest
from fib_bench.cli.main import main


@pytest.fixture
def root(make_data_set):
    return make_data_set(sizes=(3,))


@pytest.fixture
def broken(root):
    with (root / "workloads/elementwise/double.jsonl").open("a") as file:
        file.write('{"definition": "double", "workload": {"axes": {"n": 4.7}, "inputs": {}, "uuid": "w1"}}\n')
    return root


@pytest.fixture
def older(root):
    path = root / "definitions/elementwise/double.json"
    path.write_text(path.read_text().replace('"op_type"', '"type"'))
    return root


class TestValidate:
    def test_a_good_set_gives_a_line_and_0(self, root, capsys):
        assert main(["validate", str(root)]) == 0
        counts = "1 definition, 0 solutions, 1 workload, 0 traces, 0 blobs"
        assert capsys.readouterr().out == f"{root}: {counts}: 0 errors, 0 warnings\n"

    def test_an_error_is_shown_with_its_place_and_gives_1(self, broken, capsys):
        assert main(["validate", str(broken)]) == 1
        place = "workloads/elementwise/double.jsonl:2 at $.workload.axes.n"
        assert f"error: {place}: expected an integer, got number 4.7\n" in capsys.readouterr().out

    def test_json_is_one_object_with_every_problem(self, broken, capsys):
        assert main(["validate", str(broken), "--json"]) == 1
        report = json.loads(capsys.readouterr().out)
        assert report["is_ok"] is False
        assert [(p["file"], p["line"], p["code"]) for p in report["problems"]] == [
            ("workloads/elementwise/double.jsonl", 2, "schema")
        ]

    def test_warnings_do_not_count(self, root, capsys):
        (root / "definitions/notes.txt").touch()
        assert main(["validate", str(root)]) == 0
        assert "warning: definitions/notes.txt: is not read" in capsys.readouterr().out

    def test_a_legacy_set_has_errors_that_name_migrate(self, older, capsys):
        assert main(["validate", str(older)]) == 1
        assert "'type' is of a legacy schema: rewrite it with 'fib-bench migrate'" in capsys.readouterr().out

    def test_problems_of_one_kind_are_a_line_with_a_count(self, root, capsys):
        (root / "workloads/elementwise/double.jsonl").write_text("{}\n" * 130)
        assert main(["validate", str(root)]) == 1
        out = capsys.readouterr().out
        assert "260 errors" in out
        assert out.count("(and 129 more like it: ") == 2
        assert len(out.splitlines()) == 3

    def test_a_folder_of_a_set_fails_and_names_the_set(self, root, capsys):
        assert main(["validate", str(root / "definitions")]) == 1
        assert f"did you mean '{root}'?" in capsys.readouterr().out

    def test_a_missing_set_is_a_wrong_command(self, tmp_path, capsys):
        assert main(["validate", str(tmp_path / "nowhere")]) == 2
        assert "no data set at" in capsys.readouterr().err


class TestMigrate:
    def test_an_older_set_is_rewritten_and_valid(self, older, tmp_path, capsys):
        assert main(["migrate", str(older), str(tmp_path / "new")]) == 0
        out = capsys.readouterr().out
        assert "0 errors, 0 warnings" in out
        assert main(["validate", str(tmp_path / "new")]) == 0

    def test_what_cannot_be_read_is_named_and_gives_1(self, broken, tmp_path, capsys):
        assert main(["migrate", str(broken), str(tmp_path / "new")]) == 1
        out = capsys.readouterr().out
        assert "rejected: workloads/elementwise/double.jsonl:2 at $.workload.axes.n" in out

    def test_json_is_one_object(self, older, tmp_path, capsys):
        assert main(["migrate", str(older), str(tmp_path / "new"), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["counts"]["definitions"] == 1
        assert report["validation"]["is_ok"] is True

    def test_a_target_that_holds_something_is_refused(self, root, tmp_path, capsys):
        (tmp_path / "new").mkdir()
        (tmp_path / "new/file").touch()
        assert main(["migrate", str(root), str(tmp_path / "new")]) == 2
        assert "is not empty; pass a folder that is new or empty" in " ".join(capsys.readouterr().err.split())
