"""Documented behaviour of ``flashinfer_bench.compile``, as its users write it."""

import compat_samples as samples
import pytest
import torch
from flashinfer_bench.compile import BuilderRegistry, BuildError, Runnable, RunnableMetadata
from flashinfer_bench.compile.builders import PythonBuilder, TorchBuilder, TritonBuilder, TVMFFIBuilder
from flashinfer_bench.compile.utils import create_package_name, write_sources_to_path
from flashinfer_bench.data import SourceFile

X, W = torch.randn(4, 64), torch.ones(64)


def metadata(**changes):
    fields = {"build_type": "python", "definition_name": "d", "solution_name": "s", **changes}
    return RunnableMetadata(**fields)


class TestRegistry:
    def test_a_solution_is_built_once(self):
        registry = BuilderRegistry.get_instance()
        assert registry is BuilderRegistry.get_instance()
        runnable = registry.build(samples.definition(), samples.solution())
        assert registry.build(samples.definition(), samples.solution()) is runnable
        expected = registry.build_reference(samples.definition())(X, W)
        torch.testing.assert_close(runnable(X, W), expected)
        registry.cleanup()

    def test_no_builders_are_a_value_error(self):
        with pytest.raises(ValueError):
            BuilderRegistry([])

    def test_a_builder_that_cannot_build_is_a_build_error(self):
        with pytest.raises(BuildError):
            BuilderRegistry([TritonBuilder()]).build(samples.definition(), samples.solution())

    def test_a_missing_symbol_is_a_build_error(self):
        with pytest.raises(BuildError):
            PythonBuilder().build(samples.definition(), samples.solution(content="def other(x): return x\n"))

    @pytest.mark.parametrize("builder", [PythonBuilder, TritonBuilder, TVMFFIBuilder, TorchBuilder])
    def test_builders_say_whether_they_are_available(self, builder):
        assert isinstance(builder.is_available(), bool)


class TestRunnable:
    def test_the_calls(self):
        runnable = PythonBuilder().build(samples.definition(), samples.solution())
        y = torch.empty_like(X)
        runnable.call_destination_passing(X, W, y)
        torch.testing.assert_close(runnable.call_value_returning(X, W), y)
        torch.testing.assert_close(runnable.call_kwargs(x=X, weight=W), y)
        assert runnable.metadata.build_type == "python"
        assert runnable.metadata.definition.name == samples.NAME

    @pytest.mark.parametrize("is_destination_passing", [False, True])
    @pytest.mark.parametrize(("returned", "expected"), [((1,), 1), ((1, 2), (1, 2)), ((), ()), (None, None)])
    def test_a_single_result_is_a_value(self, is_destination_passing, returned, expected):
        made = metadata(destination_passing_style=is_destination_passing)
        assert Runnable(lambda: returned, made)() == expected

    def test_cleanup_runs_once(self):
        cleaned = []
        runnable = Runnable(callable=lambda: (1,), metadata=metadata(), cleaner=lambda: cleaned.append(1))
        runnable.cleanup()
        runnable.cleanup()
        assert cleaned == [1]

    def test_value_returning_without_a_definition_is_a_value_error(self):
        with pytest.raises(ValueError):
            Runnable(lambda x, y: None, metadata()).call_value_returning(X)

    def test_metadata_dumps(self):
        made = metadata(misc={"a": 1})
        assert RunnableMetadata.model_validate(made.model_dump()) == made
        assert made.destination_passing_style is True
        assert made.definition is None


class TestFunctions:
    def test_sources_are_written(self, tmp_path):
        sources = [SourceFile(path="main.py", content="A = 1\n"), SourceFile(path="lib/b.cuh", content="//\n")]
        paths = write_sources_to_path(tmp_path, sources)
        assert paths == [tmp_path / "main.py", tmp_path / "lib" / "b.cuh"]
        assert paths[0].read_text("utf-8") == "A = 1\n"

    def test_sources_outside_the_folder_are_refused(self, tmp_path):
        source = SourceFile.__new__(SourceFile)
        object.__setattr__(source, "path", "../out.py")
        object.__setattr__(source, "content", "")
        with pytest.raises(ValueError):
            write_sources_to_path(tmp_path / "in", [source])

    def test_package_names_are_identifiers_of_their_content(self):
        name = create_package_name(samples.solution("a-b.c"), "fib_python_")
        assert name.startswith("fib_python_")
        assert name.isidentifier()
        assert name != create_package_name(samples.solution("a-b.c", samples.MARKED), "fib_python_")
        assert create_package_name(samples.solution()).isidentifier()
