"""Settings of all definitions: which calls of which definitions are kept, and which of their inputs are stored.

`TracingConfigRegistry` holds the settings (`TracingConfig`) by name and by rules. `get_default_configs`,
`get_full_configs` and `get_attention_only_configs` are presets. `read_configuration` makes the settings of a runtime.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

import attrs
import yaml
from fib_apply.yaml_nodes import Dumper
from fib_schema import Definition, UnknownName
from fib_schema.files import write_output

from .config_file import SettingsFile, parse_settings, read_settings
from .errors import InvalidSetting
from .tracing_config import CONFIG_VARIABLE, Rule, RuntimeOptions, TracingConfig


def _to_dict(value: Mapping[str, TracingConfig]) -> dict[str, TracingConfig]:
    return dict(value)


def _to_rules(value: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(value)


@attrs.define
class TracingConfigRegistry:
    """Settings of all definitions.

    A definition's own settings come first, then the first rule that matches, then the default. Without a default, a
    definition that has no settings is not traced.
    """

    default: TracingConfig | None = attrs.field(factory=TracingConfig)
    per_definition: dict[str, TracingConfig] = attrs.field(factory=dict, converter=_to_dict)
    rules: tuple[Rule, ...] = attrs.field(default=(), converter=_to_rules)

    def __attrs_post_init__(self) -> None:
        _check_configs(self.per_definition)
        if self.default is not None:
            _check_configs({"default": self.default})

    def get(self, name: str, definition: Definition | None = None) -> TracingConfig | None:
        """The settings of a definition; rules apply only if the definition itself is given."""
        if name in self.per_definition:
            return self.per_definition[name]
        rules = () if definition is None else (rule for rule in self.rules if rule.matches(definition))
        return next((rule.config for rule in rules), self.default)

    def register(self, name: str, config: TracingConfig, override: bool = False) -> None:
        """Set the settings of one definition.

        Raises:
            InvalidSetting: It has some already, and `override` is false.
        """
        self.register_many({name: config}, override)

    def register_many(self, configs: Mapping[str, TracingConfig], override: bool = False) -> None:
        """Set the settings of several definitions, or of none if one of them cannot be set."""
        _check_configs(configs)
        for name, config in configs.items():
            if name in self.per_definition and not override:
                raise InvalidSetting(name, config, "override=True, because this definition has settings")
        self.per_definition.update(configs)

    def check(self, definitions: Mapping[str, Definition], names: Collection[str] | None = None) -> None:
        """Refuse names that match nothing in a data set.

        Args:
            definitions: The valid definitions.
            names: The names of all definitions, also of damaged ones; None means those of `definitions`.

        Raises:
            UnknownName: There is no such definition, or no such op_type of a rule without a pattern; or none of the
                definitions that settings apply to has such an input or axis.
        """
        self._check_names(definitions, tuple(definitions if names is None else names))
        if any(name not in definitions for name in names or ()):
            return  # a damaged definition may have the input or axis; its first call reports the damage
        uses: dict[int, tuple[TracingConfig, list[Definition]]] = {}
        for name, definition in definitions.items():
            if (config := self.get(name, definition)) is not None:
                uses.setdefault(id(config), (config, []))[1].append(definition)
        for config, users in uses.values():
            inputs = {name for definition in users for name in definition.inputs}
            axes = {name for definition in users for name in definition.axes}
            for kind, named, known in (("input", config.named_inputs(), inputs), ("axis", config.named_axes(), axes)):
                if unknown := set(named) - known:
                    raise UnknownName(kind, min(unknown), tuple(sorted(known)))

    def _check_names(self, definitions: Mapping[str, Definition], names: Collection[str]) -> None:
        """Refuse names of definitions and op_types that a data set lacks; patterns may match nothing."""
        for name in (*self.per_definition, *(rule.name for rule in self.rules if not _is_pattern(rule.name))):
            if name not in names:
                raise UnknownName("definition", name, tuple(names))
        if any(name not in definitions for name in names):
            return  # a damaged definition may have the op_type
        op_types = {definition.op_type for definition in definitions.values()}
        for rule in self.rules:
            if not _is_pattern(rule.op_type) and rule.op_type not in op_types:
                raise UnknownName("op_type", rule.op_type, tuple(sorted(op_types)))

    def to_yaml(self) -> str:
        """As YAML that `from_yaml` reads."""
        rules = [{"op_type": rule.op_type, "name": rule.name, **rule.config.to_plain()} for rule in self.rules]
        content = {
            "default": None if self.default is None else self.default.to_plain(),
            "rules": rules,
            "definitions": {name: config.to_plain() for name, config in self.per_definition.items()},
        }
        return yaml.dump(content, Dumper=Dumper, sort_keys=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a YAML file; an existing one is replaced atomically.

        Raises:
            OSError: It could not be written.
        """
        write_output(path, self.to_yaml().encode())

    @classmethod
    def from_yaml(cls, text: str) -> TracingConfigRegistry:
        """Settings from YAML with the keys ``default``, ``rules`` and ``definitions``, all optional.

        Raises:
            InvalidConfigFile: The text is not valid; the error lists all problems (a ValueError).
        """
        return cls.from_file(parse_settings(text.encode(), "<text>"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TracingConfigRegistry:
        """Settings from a YAML file, without the options of a runtime.

        Raises:
            InvalidConfigFile: The file is not valid; the error lists all problems (a ValueError).
            OSError: It could not be read.
        """
        return cls.from_file(read_settings(path))

    @classmethod
    def from_file(cls, file: SettingsFile) -> TracingConfigRegistry:
        """The settings of a file that was read."""
        return cls(file.default, file.definitions, file.rules)


def _is_pattern(text: str) -> bool:
    return bool(set(text) & set("*?["))


def _check_configs(configs: Mapping[str, object]) -> None:
    for name, config in configs.items():
        if not isinstance(config, TracingConfig):
            raise InvalidSetting(name, config, "a TracingConfig")


# -- presets, which match by op_type and so fit definitions that are written later -------------------

_BY_SIZE = TracingConfig("dump_none", filter_policy="keep_first_k_by_axes")
"""For dense inputs, whose values do not change the work."""
_BY_LENGTH = TracingConfig("dump_int", filter_policy="attention")
"""For attention, whose work depends on offsets and indices."""
_INDICES_BY_SIZE = TracingConfig("dump_int", filter_policy="keep_first_k_by_axes")
"""For routing, page tables and lengths, on which the work depends and which have no average."""
_ATTENTION_RULES = (Rule(_BY_LENGTH, "gqa*"), Rule(_BY_LENGTH, "mla*"), Rule(_INDICES_BY_SIZE, "dsa*"))
_FULL_RULES = (Rule(_BY_SIZE, "gemm*"), Rule(_BY_SIZE, "*rmsnorm*"), *_ATTENTION_RULES)


def get_default_configs() -> TracingConfigRegistry:
    """The default `TracingConfig` for all definitions: all sizes that occur, no values."""
    return TracingConfigRegistry(TracingConfig())


def get_full_configs() -> TracingConfigRegistry:
    """Dense operators once for each size, attention by average length with its indices, all others by default."""
    return TracingConfigRegistry(TracingConfig(), rules=_FULL_RULES)


def get_attention_only_configs() -> TracingConfigRegistry:
    """Attention like `get_full_configs`; nothing else is traced."""
    return TracingConfigRegistry(None, rules=_ATTENTION_RULES)


Settings: TypeAlias = (
    "TracingConfig | Mapping[str, TracingConfig] | TracingConfigRegistry | str | os.PathLike[str] | None"
)
"""Settings for all definitions, by definition, a registry, a YAML file, or None for `get_full_configs`."""


def to_registry(settings: Settings) -> TracingConfigRegistry:
    """Settings as a registry.

    Raises:
        InvalidSetting: They have another type.
    """
    if settings is None:
        return get_full_configs()
    if isinstance(settings, TracingConfigRegistry):
        return settings
    if isinstance(settings, TracingConfig):
        return TracingConfigRegistry(settings)
    if isinstance(settings, Mapping):
        return TracingConfigRegistry(None, dict(settings))
    if isinstance(settings, (str, os.PathLike)):
        return TracingConfigRegistry.load(settings)
    raise InvalidSetting("tracing_config", settings, "a TracingConfig, a registry, a mapping by definition or a file")


def read_configuration(settings: Settings, given: Mapping[str, Any]) -> tuple[TracingConfigRegistry, RuntimeOptions]:
    """The settings of a runtime, and its options.

    Args:
        settings: As the program passed them; None means the file that `CONFIG_VARIABLE` names, or the full preset.
        given: Fields of `RuntimeOptions` that the program passed, which precede those of a file; None for others.

    Raises:
        InvalidSetting: They have another type, or an option has a value that is not allowed.
        InvalidConfigFile: The file is not valid.
        OSError: The file cannot be read.
    """
    if settings is None:
        settings = os.environ.get(CONFIG_VARIABLE) or None
    changes = {name: value for name, value in given.items() if value is not None}
    if isinstance(settings, str | os.PathLike):
        file = read_settings(settings)
        return TracingConfigRegistry.from_file(file), attrs.evolve(file.options, **changes)
    return to_registry(settings), RuntimeOptions(**changes)
