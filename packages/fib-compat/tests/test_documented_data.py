"""Documented behaviour of ``flashinfer_bench.data``, as its users write it."""

import json

import attrs
import compat_samples as samples
import pytest
import torch
from compat_samples import NAME
from flashinfer_bench.data import (
    BuildSpec,
    Correctness,
    Definition,
    Evaluation,
    ScalarInput,
    Solution,
    SpeedupMetrics,
    Trace,
    TraceSet,
    TraceSetSummary,
    Workload,
    append_jsonl_file,
    load_json_file,
    load_jsonl_file,
    save_json_file,
    save_jsonl_file,
)


class TestSetsThatCanBeChanged:
    """``solutions``, ``workloads`` and ``traces`` are documented as ``Dict[str, List]``."""

    def test_an_appended_trace_counts(self):
        trace_set = samples.trace_set(traces={NAME: [samples.trace(speedup=2.0)]})
        trace_set.traces[NAME].append(samples.trace(speedup=3.0))
        assert trace_set.get_best_trace(NAME).evaluation.performance.speedup_factor == 3.0
        assert len(trace_set.filter_traces(NAME)) == 2

    def test_a_definition_is_assigned(self):
        trace_set = TraceSet()
        trace_set.definitions["other"] = samples.definition("other")
        trace_set.solutions["other"] = [samples.solution("theirs", definition="other")]
        trace_set.workloads["other"] = [samples.workload_trace(2, "other")]
        assert sorted(trace_set.to_dict()["definitions"]) == ["other"]
        assert trace_set.get_solution("theirs").definition == "other"

    def test_a_removed_solution_is_gone(self):
        trace_set = samples.trace_set()
        trace_set.solutions[NAME].clear()
        assert trace_set.get_solution("plain") is None
        trace_set.traces.pop(NAME, None)
        assert trace_set.get_best_trace(NAME) is None

    def test_a_loaded_set_can_be_changed_and_the_disk_stays(self, tmp_path):
        trace_set = TraceSet.from_path(str(samples.write(tmp_path)))
        trace_set.solutions[NAME].append(samples.solution("second"))
        trace_set.traces.setdefault(NAME, []).append(samples.trace("second"))
        assert trace_set.get_best_trace(NAME).solution == "second"
        assert TraceSet.from_path(str(tmp_path)).get_solution("second") is None

    def test_two_sets_share_nothing(self):
        first, second = TraceSet(), TraceSet()
        first.traces.setdefault(NAME, []).append(samples.trace())
        assert NAME not in second.traces

    def test_add_traces_adds_in_memory_without_a_root(self):
        trace_set = samples.trace_set()
        trace_set.add_traces([samples.trace()])
        trace_set.traces[NAME].append(samples.trace(speedup=4.0))
        assert len(trace_set.traces[NAME]) == 2

    def test_add_traces_writes_to_the_folder(self, tmp_path):
        trace_set = TraceSet.from_path(str(samples.write(tmp_path)))
        trace_set.add_traces([samples.trace()])
        assert trace_set.get_best_trace(NAME) == samples.trace()
        assert TraceSet.from_path(str(tmp_path)).traces[NAME] == [samples.trace()]

    def test_a_missing_definition_raises_key_error_and_get_returns_a_default(self):
        trace_set = samples.trace_set()
        with pytest.raises(KeyError):
            trace_set.solutions["unknown"]
        assert trace_set.solutions.get("unknown", []) == []

    def test_the_scores_see_what_was_appended(self):
        trace_set = samples.trace_set(traces={NAME: [samples.trace(latency=1.0)]})
        trace_set.solutions[NAME].append(samples.solution("theirs", author="baseline"))
        trace_set.traces[NAME].append(samples.trace("theirs", latency=3.0))
        assert trace_set.get_solution_score("plain").avg_speedup == pytest.approx(3.0)
        assert [author for author, _ in trace_set.rank_authors()] == ["ada"]


class TestScores:
    def measured(self):
        solutions = [samples.solution(), samples.solution("base", author="baseline")]
        traces = [samples.trace(latency=1.0), samples.trace("base", latency=2.0)]
        return samples.trace_set(solutions={NAME: solutions}, traces={NAME: traces})

    def test_summary_has_the_documented_fields(self):
        summary = self.measured().summary()
        assert isinstance(summary, TraceSetSummary)
        assert (summary.total, summary.passed, summary.failed) == (2, 2, 0)
        assert [author for author, _ in summary.rankings] == ["ada"]
        assert TraceSetSummary.model_validate(json.loads(summary.model_dump_json())) == summary

    def test_metrics_dump_and_validate(self):
        metrics = self.measured().get_solution_score("plain")
        assert isinstance(metrics, SpeedupMetrics)
        assert metrics.avg_speedup == pytest.approx(2.0)
        assert metrics.model_dump()["avg_speedup"] == pytest.approx(2.0)
        assert SpeedupMetrics.model_validate(json.loads(metrics.model_dump_json())) == metrics

    def test_metrics_count_the_definitions_in_the_mean(self):
        trace_set = self.measured()
        assert trace_set.get_solution_score("plain").definitions == 1
        trace_set.definitions["other"] = samples.definition("other")
        pairs = (("theirs", "ada", 1.0), ("other_base", "baseline", 2.0))
        trace_set.solutions["other"] = [samples.solution(name, definition="other", author=by) for name, by, _ in pairs]
        trace_set.traces["other"] = [
            attrs.evolve(samples.trace(name, latency=latency), definition="other") for name, _, latency in pairs
        ]
        assert trace_set.get_author_score("ada").definitions == 2

    def test_the_baseline_itself_and_unknown_names_have_no_score(self):
        trace_set = self.measured()
        assert trace_set.get_solution_score("base") is None
        assert trace_set.get_solution_score("unknown") is None

    def test_a_failed_trace_makes_the_score_zero(self):
        trace_set = self.measured()
        trace_set.traces[NAME].append(samples.trace(batch=8, status="RUNTIME_ERROR"))
        assert trace_set.get_solution_score("plain").avg_speedup == 0

    def test_a_missing_baseline_is_a_value_error(self):
        with pytest.raises(ValueError):
            samples.trace_set(traces={NAME: [samples.trace()]}).get_solution_score("plain")
        with pytest.raises(ValueError):
            samples.trace_set(traces={NAME: [samples.trace()]}).rank_authors()

    def test_scope_errors(self):
        with pytest.raises(KeyError):
            self.measured().get_author_score("ada", definition_name="unknown")
        with pytest.raises(ValueError):
            self.measured().rank_authors(op_type="rmsnorm", definition_name=NAME)


class TestRecords:
    @pytest.mark.parametrize(
        ("cls", "fields"),
        [
            (Correctness, {"max_relative_error": 0.5, "max_absolute_error": 0.25, "mean": 3}),
            (Workload, {"axes": {}, "inputs": {}, "uuid": "u", "comment": "none"}),
            (Evaluation, {**attrs.asdict(samples.evaluation(), recurse=False), "log_file": "/tmp/run.log"}),
        ],
    )
    def test_unknown_keywords_of_any_record_are_ignored(self, cls, fields):
        known = dict(list(fields.items())[:-1])
        assert cls(**fields) == cls(**known)

    def test_unknown_keys_are_accepted_by_model_validate(self):
        """They are kept, so that a record that is read and written again loses nothing."""
        dumped = samples.evaluation().model_dump()
        validated = Evaluation.model_validate({**dumped, "log_file": "x"})
        assert (validated.status, validated.performance) == (dumped["status"], samples.evaluation().performance)

    def test_a_misspelled_required_field_is_still_missing(self):
        with pytest.raises((TypeError, ValueError)):
            Workload(axis={}, inputs={}, uuid="u")

    def test_plain_mappings_become_records(self):
        fields = samples.definition().model_dump()
        fields["inputs"] = {"x": {"shape": ["batch", "hidden"], "dtype": "float32"}}
        fields["reference"] = "def run(x):\n    return x\n"
        made = Definition(**fields)
        assert made.inputs["x"].shape in (["batch", "hidden"], ("batch", "hidden"))
        assert made.const_axes == {"hidden": 64}

    def test_invalid_records_are_value_errors(self):
        with pytest.raises(ValueError):
            samples.definition(reference="def other(x): pass")
        with pytest.raises(ValueError):
            samples.definition(constraints=["hidden =="])

    def test_a_unique_name_has_eight_characters_of_the_hash(self):
        solution = samples.solution()
        assert solution.with_unique_name().name == f"plain_{solution.hash()[:8]}"

    @pytest.mark.parametrize("text", ["Infinity", '"Infinity"', "-Infinity", '"-Infinity"', "NaN", '"NaN"'])
    def test_both_forms_of_numbers_that_are_not_finite_are_read(self, text, tmp_path):
        line = f'{{"type": "scalar", "value": {text}}}'
        (tmp_path / "a.jsonl").write_text(f"{line}\n")
        (tmp_path / "a.json").write_text(line)
        read = [ScalarInput.model_validate_json(line), load_json_file(ScalarInput, tmp_path / "a.json")]
        read += load_jsonl_file(ScalarInput, tmp_path / "a.jsonl")
        assert {str(one.value) for one in read} == {str(float(text.strip('"')))}

    def test_an_empty_list_of_hardware_is_refused(self):
        with pytest.raises(ValueError, match="target_hardware"):
            BuildSpec(language="python", target_hardware=[], entry_point="main.py::run")

    def test_axes_and_shapes(self):
        definition = samples.definition()
        assert definition.var_axes_bindings == {"batch": ("x", 0)}
        assert definition.get_axes_values([(4, 64), (64,)]) == {"batch": 4}
        assert list(map(tuple, definition.get_input_shapes({"batch": 4}))) == [(4, 64), (64,)]
        for args, kwargs in (((1,), {"weight": 2}), ((), {"weight": 2, "x": 1}), ((1, 2), {})):
            assert definition.merge_kwargs_to_args(args, kwargs) in ((1, 2), [1, 2])
        with pytest.raises(ValueError):
            definition.get_axes_values([(4,), (64,)])


class TestFiles:
    def test_jsonl_files(self, tmp_path):
        path = tmp_path / "t.jsonl"
        save_jsonl_file([samples.trace()], path)
        append_jsonl_file([samples.trace(batch=8)], path)
        assert load_jsonl_file(Trace, path) == [samples.trace(), samples.trace(batch=8)]

    def test_json_files(self, tmp_path):
        save_json_file(samples.solution(), tmp_path / "a" / "s.json")
        assert load_json_file(Solution, tmp_path / "a" / "s.json") == samples.solution()

    def test_blobs(self, tmp_path):
        trace_set = TraceSet.from_path(str(samples.write(tmp_path)))
        path = trace_set.add_workload_blob_tensor(NAME, "u1", {"x": torch.ones(2)})
        assert trace_set.get_workload_blob_tensor(path)["x"].tolist() == [1, 1]
        with pytest.raises(ValueError):
            TraceSet().add_workload_blob_tensor(NAME, "u1", {"x": torch.ones(2)})

    def test_the_default_folder_is_the_variable(self, tmp_path, monkeypatch):
        monkeypatch.setenv("FIB_DATASET_PATH", str(samples.write(tmp_path)))
        assert TraceSet.from_path().root == tmp_path
        with pytest.raises(FileNotFoundError):
            TraceSet.from_path(str(tmp_path / "nowhere"))

    def test_backup_traces_moves_them_aside(self, tmp_path):
        trace_set = TraceSet.from_path(str(samples.write(tmp_path, traces=(samples.trace(),))))
        trace_set.backup_traces()
        assert len(list(tmp_path.glob("traces*"))) >= 1
