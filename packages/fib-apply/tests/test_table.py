"""Apply tables: content, validity of the cache, and bad data."""

import json
import logging
import os
import shutil
from pathlib import Path

import attrs
import pytest
from apply_samples import new_definition, new_solution, new_trace, write_set
from fib_apply.config import ApplyConfig, ApplyConfigRegistry
from fib_apply.key import ApplyKey, ApplyKeyFactory, AxesOnlyKeyBuilder
from fib_apply.selection import table as table_module
from fib_apply.selection.table import ApplyTable
from fib_schema import InvalidRecord, TraceSet, UnknownName, get_fib_cache_path


def key_of(m):
    return ApplyKey({"M": m})


@attrs.define
class Builds:
    """Counts how often a table was built: each build replaces its file in the cache."""

    cache: Path
    seen: set[tuple[int, int]] = attrs.field(factory=set)

    @property
    def count(self):
        states = [path.stat() for path in self.cache.rglob("*.table")]
        self.seen.update((state.st_ino, state.st_mtime_ns) for state in states)
        return len(self.seen)


@pytest.fixture
def traces():
    interval, wide = {"interval_ms": [0.9, 1.1]}, {"interval_ms": [1.05, 2.5]}
    return [
        new_trace("fast", 1.0, m=1, timing=interval, tolerance={"atol": 0.1, "rtol": 0.2}),
        new_trace("slow", 2.0, m=1, timing={"setup_ms": 1, **wide}),
        new_trace("fast", 1.0, m=2),
        new_trace("slow", 0.5, m=3, hardware="gpu"),
        new_trace("bad", m=1, status="RUNTIME_ERROR"),
    ]


@pytest.fixture
def solutions():
    return [new_solution("fast", "cuda"), new_solution("slow", author="bob"), new_solution("bad")]


@pytest.fixture
def root(tmp_path, solutions, traces):
    definitions = [new_definition("scale"), new_definition("idle")]
    write_set(tmp_path / "set", *traces, solutions=solutions, definitions=definitions)
    return tmp_path / "set"


@pytest.fixture
def builds(tmp_path):
    return Builds(tmp_path / "cache")


@pytest.fixture
def open_table(root, tmp_path, builds):
    def opened(config=None):
        table = ApplyTable.load_or_build(root, config, cache_root=tmp_path / "cache")
        assert builds.count
        return table

    return opened


@pytest.fixture
def cache_file(tmp_path):
    def found():
        (path,) = (tmp_path / "cache").rglob("*.table")
        return path

    return found


def everything(table):
    return {name: dict(table.rankings(name)) for name in table.definitions}


def trace_file(root):
    return root / "traces" / "ada" / "elementwise" / "scale.jsonl"


class TestContent:
    def test_is_equal_from_disk_cache_and_memory(self, open_table, builds, root, solutions, traces):
        made, cached = open_table(), open_table()
        assert builds.count == 1
        definitions = dict(TraceSet.from_path(root).definitions)
        in_memory = TraceSet(None, definitions, {"scale": solutions}, None, {"scale": traces})
        assert everything(made) == everything(cached) == everything(ApplyTable.load_or_build(in_memory))
        assert made.digest == cached.digest
        assert made.problems == cached.problems == ()

    def test_rankings_by_hardware(self, open_table):
        rankings = open_table().rankings("scale")
        assert {hardware: sorted(k.axes for k in c.by_key) for hardware, c in rankings.items()} == {
            "cpu": [(("M", 1),), (("M", 2),)],
            "gpu": [(("M", 3),)],
        }
        assert rankings["cpu"].by_key[key_of(1)].left_out == (("bad", "RUNTIME_ERROR on workload w1"),)
        assert open_table().rankings("unknown") == {}
        assert open_table().rankings("idle") == {}

    def test_view_from_this_machine(self, open_table, monkeypatch):
        table = open_table()
        monkeypatch.setattr(table_module, "local_hardware", lambda: ("gpu", "cpu"))
        assert table.match_solution("scale", key_of(1)) == "fast"
        assert table.match_solution("scale", key_of(3)) == "slow"
        assert table.match_solution("scale", key_of(99)) is None
        assert table.index["scale"] == {key_of(3): "slow"}
        assert set(table.def_best) == {"scale"}

    def test_winners(self, open_table):
        table = open_table()
        # `slow` is simpler and within the interval, but has a setup: plain calls get `fast`
        assert table.winners("cpu") == [("scale", "fast", 2), ("scale", "slow", 1)]
        assert table.winners("gpu") == [("scale", "slow", 1)]
        assert table.winners("tpu") == []

    def test_the_cache_is_below_the_usual_folder(self, root, tmp_path, monkeypatch):
        monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "elsewhere"))
        ApplyTable.load_or_build(root)
        (path,) = (get_fib_cache_path() / "apply-v1").iterdir()
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700


class TestRecords:
    def test_unknown_names(self, open_table):
        with pytest.raises(UnknownName, match="did you mean 'fast'"):
            open_table().solution("fats")
        with pytest.raises(UnknownName):
            open_table().definition("no")

    def test_a_solution_that_has_changed_is_refused(self, open_table, root):
        table = open_table()
        path = next(root.rglob("fast.json"))
        path.write_text(path.read_text().replace('"x"', '"y"'))
        with pytest.raises(InvalidRecord, match="changed after the table was made"):
            table.solution("fast")


class TestCache:
    def test_other_content_of_the_same_size(self, open_table, builds, root):
        first = open_table()
        path = trace_file(root)
        state = path.stat()
        path.write_text(path.read_text().replace('"latency_ms":1.0', '"latency_ms":9.0'))
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
        second = open_table()
        assert second.rankings("scale")["cpu"].by_key[key_of(2)].candidates[0].latency_ms == 9.0
        assert path.stat().st_size == state.st_size
        assert first.digest != second.digest

    @pytest.mark.parametrize("change", ["new", "deleted", "renamed", "replaced by one of the same size and time"])
    def test_other_files(self, open_table, builds, root, change):
        open_table()
        path = trace_file(root)
        if change == "new":
            path.with_name("more.jsonl").touch()
        elif change == "deleted":
            path.unlink()
        elif change == "renamed":
            path.rename(path.with_name("more.jsonl"))
        else:
            shutil.copy2(path, root / "copy").replace(path)
        open_table()
        assert builds.count == 2

    def test_is_valid_if_only_irrelevant_files_change(self, open_table, builds, root):
        open_table()
        trace_file(root).with_name(".hidden.jsonl").touch()
        trace_file(root).with_name("notes.txt").touch()
        (root / "workloads").mkdir(exist_ok=True)
        (root / "workloads" / "w.jsonl").touch()
        open_table()
        assert builds.count == 1

    def test_settings(self, open_table, builds):
        open_table()
        open_table(ApplyConfig(max_atol=0.5))
        of_scale = ApplyConfigRegistry()
        of_scale.register("scale", ApplyConfig(max_atol=0.5))
        open_table(of_scale)
        assert builds.count == 3
        open_table(ApplyConfig(max_atol=0.5))
        open_table(ApplyConfig(on_error="fallback"))  # which does not decide on rankings
        assert builds.count == 3

    def test_key_builders(self, open_table, builds):
        class Other(AxesOnlyKeyBuilder):
            pass

        first = open_table()
        ApplyKeyFactory.register("elementwise", Other)
        assert open_table().digest != first.digest
        open_table()
        assert builds.count == 2

    @pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
    def test_a_changed_byte(self, open_table, cache_file, share):
        expected = everything(open_table())
        data = bytearray(cache_file().read_bytes())
        data[int(share * (len(data) - 1))] ^= 0x40
        cache_file().write_bytes(data)
        assert everything(open_table()) == expected
        assert cache_file().read_bytes() != data

    @pytest.mark.parametrize("obstacle", ["file", "folder"])
    def test_a_folder_that_cannot_be_written(self, root, tmp_path, caplog, obstacle):
        (tmp_path / "cache").mkdir()
        if obstacle == "file":
            (tmp_path / "cache" / "apply-v1").touch()
        else:
            ApplyTable.load_or_build(root, cache_root=tmp_path / "cache")
            (path,) = (tmp_path / "cache").rglob("*.table")
            path.unlink()
            (path / "in_the_way").mkdir(parents=True)
        with caplog.at_level(logging.WARNING, logger="fib_apply"):
            table = ApplyTable.load_or_build(root, cache_root=tmp_path / "cache")
        assert table.match_solution("scale", key_of(2), "cpu") == "fast"
        assert "cannot be cached" in caplog.text
        assert not list((tmp_path / "cache").rglob("*.tmp"))


class TestBadData:
    def test_bad_lines_are_reported(self, open_table, root):
        whole = len(trace_file(root).read_text().splitlines())
        with trace_file(root).open("a") as file:
            file.write(
                '{"definition": "scale"\n[]\n{"definition":"scale","workload":{},"solution":"fast"}\n   \n{"torn"'
            )
        for table in (open_table(), open_table()):
            places = sorted(str(problem).split(": ")[0] for problem in table.problems)
            assert [place.split(" at ")[0] for place in places] == [
                f"{trace_file(root)}:{whole + number}" for number in (1, 2, 3, 5)
            ]
            assert table.match_solution("scale", key_of(2), "cpu") == "fast"

    def test_unusual_but_valid_lines_count(self, open_table, root):
        path = trace_file(root)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[0]["evaluation"]["correctness"]["max_relative_error"] = "NaN"
        lines[0]["evaluation"]["extra"] = {"flags": ["unsealed"]}
        path.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
        assert open_table().match_solution("scale", key_of(1), "cpu") == "fast"

    def test_damaged_records_are_left_out(self, open_table, root):
        files = next(root.rglob("fast.json")), next(root.rglob("idle.json"))
        for path in files:
            path.write_text("{")
        table = open_table()
        assert [any(str(path) in str(problem) for problem in table.problems) for path in files] == [True, True]
        assert table.definitions == ("scale",)
        assert table.match_solution("scale", key_of(2), "cpu") is None
        with pytest.raises(UnknownName):
            table.solution("fast")

    def test_an_ambiguous_solution_name_is_left_out(self, open_table, root):
        path = next(root.rglob("fast.json"))
        path.with_name("copy.json").write_bytes(path.read_bytes())
        table = open_table()
        assert "another solution is named 'fast'" in str(table.problems[0])
        assert table.match_solution("scale", key_of(2), "cpu") is None

    def test_records_in_files_of_other_names_count(self, open_table, root):
        expected = {key_of(1): "fast", key_of(2): "fast"}
        path = trace_file(root)
        path.rename(path.with_name("idle.jsonl"))
        assert dict(open_table().index["scale"]) == expected
        path.with_name("idle.jsonl").rename(path.with_name("anything.jsonl"))
        assert dict(open_table().index["scale"]) == expected

    def test_definitions_whose_files_are_swapped(self, open_table, root):
        trace_set = TraceSet.from_path(root)
        trace_set.add_solutions([new_solution("own", definition="idle")])
        trace_set.add_traces([new_trace("own", m=5, definition="idle")])
        one, other = trace_file(root), trace_file(root).with_name("idle.jsonl")
        one.rename(root / "swap")
        other.rename(one)
        (root / "swap").rename(other)
        index = open_table().index
        assert {name: set(index[name]) for name in index} == {"scale": {key_of(1), key_of(2)}, "idle": {key_of(5)}}

    def test_links_are_followed_inside_and_refused_outside(self, open_table, root, tmp_path):
        path = trace_file(root)
        inside = root / "elsewhere.jsonl"
        path.rename(inside)
        path.symlink_to(inside)
        (path.parent / "circle").symlink_to(root / "traces")
        assert open_table().match_solution("scale", key_of(2), "cpu") == "fast"
        inside.rename(tmp_path / "outside.jsonl")
        path.unlink()
        path.symlink_to(tmp_path / "outside.jsonl")
        table = open_table()
        assert table.match_solution("scale", key_of(2), "cpu") is None
        assert any(str(path) in str(problem) for problem in table.problems)
