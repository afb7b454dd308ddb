"""Settings of tracing: which calls of which definitions are kept, and which of their inputs are stored.

`TracingConfig` names the policies of a definition. `TracingConfigRegistry` holds the settings of all definitions, by
name and by rules; `get_default_configs`, `get_full_configs` and `get_attention_only_configs` are presets.
`RuntimeOptions` are those of a runtime. A YAML file has the keys ``default`` (fields of `TracingConfig`, or null),
``rules`` (a list of the same, each with ``op_type`` and ``name``), ``definitions`` (the same by definition), and the
fields of `RuntimeOptions`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Self, TypeAlias

import attrs
from fib_schema import Definition, UnknownName
from fib_schema.settings import InvalidSetting, SettingsFile

from .policies import DumpByFunction, DumpNamed, FilterPolicy, InputDumpPolicy, KeepFirstKByAxes, PolicyRegistry

ENABLE_VARIABLE = "FIB_ENABLE_TRACING"
"""``1`` enables tracing when calls are first routed."""
CONFIG_VARIABLE = "FIB_TRACING_CONFIG"
"""A YAML file with the settings of all runtimes whose program passes none; `get_full_configs` if it is not set."""
DEFAULT_BYTES = 256 << 20
DEFAULT_MAX_KEPT = 65_536


def _check_limit(_: object, field: attrs.Attribute[Any], value: object) -> None:
    if value is not None and (type(value) is not int or value < 1):
        raise InvalidSetting(field.name, value, "an integer from 1 on, or None")


def _check_count(_: object, field: attrs.Attribute[Any], value: object) -> None:
    if type(value) is not int or value < 1:
        raise InvalidSetting(field.name, value, "an integer from 1 on")


def _check_seconds(_: object, field: attrs.Attribute[Any], value: Any) -> None:
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise InvalidSetting(field.name, value, "a number of seconds from 0 on")


def _check_arguments(_: object, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidSetting(field.name, value, "a mapping by the names of arguments")


@attrs.frozen
class RuntimeOptions:
    """Options of a `TracingRuntime` that are not of single definitions.

    Raises:
        InvalidSetting: One has a value that is not allowed (a ValueError).
    """

    max_bytes: int = attrs.field(default=DEFAULT_BYTES, validator=_check_count)
    """Bytes of copies that may be in memory at a time."""
    exit_seconds: float = attrs.field(default=30.0, validator=_check_seconds)
    """Longest wait of the end of the process until all is stored."""


@attrs.frozen
class TracingConfig:
    """The policies for a definition. Each definition has its own policy objects, made at its first call.

    Raises:
        InvalidSetting: A policy cannot be made from a setting (a ValueError).
        UnknownPolicy: No policy has that name (a KeyError and a ValueError).
    """

    input_dump_policy: Any = "dump_none"
    """A policy's name; a list of names of inputs and policies; a function of the inputs; or a policy.

    In a list, names of inputs that a definition does not have are ignored.
    """
    input_dump_policy_kwargs: Mapping[str, Any] = attrs.field(factory=dict, validator=_check_arguments)
    filter_policy: Any = "keep_all"
    """A policy's name, or a function that makes a policy."""
    filter_policy_kwargs: Mapping[str, Any] = attrs.field(factory=dict, validator=_check_arguments)
    max_kept: int | None = attrs.field(default=DEFAULT_MAX_KEPT, validator=_check_limit)
    """Calls that a process keeps of a definition; later ones are only counted. None for no limit.

    Threads may exceed it by one call each."""

    def __attrs_post_init__(self) -> None:
        self.make_dump_policy()
        self.make_filter_policy()

    def make_dump_policy(self) -> InputDumpPolicy:
        """A new input dump policy, unless the setting is a policy itself."""
        setting = self.input_dump_policy
        if isinstance(setting, InputDumpPolicy):
            return setting
        if isinstance(setting, str):
            make = PolicyRegistry.get_input_dump_policy(setting)
            policy: InputDumpPolicy = _make_policy(
                "input_dump_policy", InputDumpPolicy, make, self.input_dump_policy_kwargs
            )
            return policy
        if callable(setting):
            return DumpByFunction(setting)
        if not isinstance(setting, Sequence) or not all(isinstance(name, str) for name in setting):
            raise InvalidSetting("input_dump_policy", setting, "a policy's name, a list of inputs, or a function")
        policies = PolicyRegistry.list_input_dump_policies()
        others = [PolicyRegistry.get_input_dump_policy(name)() for name in setting if name in policies]
        return DumpNamed([name for name in setting if name not in policies], others)

    def make_filter_policy(self) -> FilterPolicy:
        """A new filter policy."""
        make = self.filter_policy
        if isinstance(make, str):
            make = PolicyRegistry.get_filter_policy(make)
        if not callable(make):
            raise InvalidSetting("filter_policy", make, "a policy's name, or a function that makes a policy")
        policy: FilterPolicy = _make_policy("filter_policy", FilterPolicy, make, self.filter_policy_kwargs)
        return policy

    def named_inputs(self) -> tuple[str, ...]:
        """The inputs that the settings name."""
        policy = self.make_dump_policy()
        return policy.names if isinstance(policy, DumpNamed) else ()

    def named_axes(self) -> tuple[str, ...]:
        """The axes that the settings name."""
        policy = self.make_filter_policy()
        return tuple(policy.axes or ()) if isinstance(policy, KeepFirstKByAxes) else ()


def _make_policy(setting: str, base: type, make: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        policy = make(**kwargs)
    except TypeError as error:
        name = getattr(make, "__name__", make)
        raise InvalidSetting(f"{setting}_kwargs", dict(kwargs), f"arguments of {name}: {error}") from error
    if not isinstance(policy, base):
        raise InvalidSetting(setting, policy, f"a {base.__name__}")
    return policy


# -- the settings of all definitions -----------------------------------------------------------------


@attrs.frozen
class Rule:
    """Settings for all definitions whose op_type and name match patterns (``*``, ``?``, ``[...]``)."""

    config: TracingConfig
    op_type: str = "*"
    name: str = "*"

    def matches(self, definition: Definition) -> bool:
        """Whether a definition matches."""
        return fnmatchcase(definition.op_type, self.op_type) and fnmatchcase(definition.name, self.name)


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

    default: TracingConfig | None = None
    per_definition: dict[str, TracingConfig] = attrs.field(factory=dict, converter=_to_dict)
    rules: tuple[Rule, ...] = attrs.field(default=(), converter=_to_rules)

    def __attrs_post_init__(self) -> None:
        _check_configs(self.per_definition)
        _check_configs({} if self.default is None else {"default": self.default})

    def get(self, name: str, definition: Definition | None = None) -> TracingConfig | None:
        """The settings of a definition; rules apply only if the definition itself is given."""
        if name in self.per_definition:
            return self.per_definition[name]
        rules = () if definition is None else (rule for rule in self.rules if rule.matches(definition))
        return next((rule.config for rule in rules), self.default)

    def register(self, name: str, config: TracingConfig, override: bool = False) -> Self:
        """Set the settings of one definition; returns this registry.

        Raises:
            InvalidSetting: It has some already, and `override` is false.
        """
        return self.register_many({name: config}, override)

    def register_many(self, configs: Mapping[str, TracingConfig], override: bool = False) -> Self:
        """Set the settings of several definitions, or of none if one of them cannot be set; returns this registry."""
        _check_configs(configs)
        for name, config in configs.items():
            if name in self.per_definition and not override:
                raise InvalidSetting(name, config, "override=True, because this definition has settings")
        self.per_definition.update(configs)
        return self

    def check(self, definitions: Mapping[str, Definition], names: Collection[str] | None = None) -> None:
        """Refuse names that match nothing in a data set.

        Args:
            definitions: The valid definitions.
            names: The names of all definitions, also of damaged ones; None means those of `definitions`.

        Raises:
            UnknownName: There is no such definition, or no such op_type of a rule without a pattern; or none of the
                definitions that settings apply to has such an input or axis.
        """
        names = tuple(definitions if names is None else names)
        for name in (*self.per_definition, *(rule.name for rule in self.rules if not _is_pattern(rule.name))):
            if name not in names:
                raise UnknownName("definition", name, names)
        if any(name not in definitions for name in names):
            return  # a damaged definition may have the op_type, input or axis; its first call reports the damage
        op_types = {definition.op_type for definition in definitions.values()}
        for rule in self.rules:
            if not _is_pattern(rule.op_type) and rule.op_type not in op_types:
                raise UnknownName("op_type", rule.op_type, tuple(sorted(op_types)))
        users: dict[int, tuple[TracingConfig, list[Definition]]] = {}
        for name, definition in definitions.items():
            if (config := self.get(name, definition)) is not None:
                users.setdefault(id(config), (config, []))[1].append(definition)
        for config, used in users.values():
            _check_known("input", config.named_inputs(), {name for definition in used for name in definition.inputs})
            _check_known("axis", config.named_axes(), {name for definition in used for name in definition.axes})

    @classmethod
    def from_yaml(cls, text: str) -> TracingConfigRegistry:
        """Settings from YAML with the keys ``default``, ``rules`` and ``definitions``, all optional.

        Raises:
            InvalidConfigFile: The text is not valid; the error lists all problems (a ValueError).
        """
        return _read(SettingsFile.parse(text.encode(), "<text>"))[0]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TracingConfigRegistry:
        """Settings from a YAML file, without the options of a runtime.

        Raises:
            InvalidConfigFile: The file is not valid; the error lists all problems (a ValueError).
            OSError: It could not be read.
        """
        return _read(SettingsFile.load(path))[0]


def _check_known(kind: str, named: Iterable[str], known: set[str]) -> None:
    if unknown := set(named) - known:
        raise UnknownName(kind, min(unknown), tuple(sorted(known)))


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
_FULL_RULES = (Rule(_BY_SIZE, "gemm*"), Rule(_BY_SIZE, "*rmsnorm*"), Rule(_INDICES_BY_SIZE, "moe*"), *_ATTENTION_RULES)


def get_default_configs() -> TracingConfigRegistry:
    """The default `TracingConfig` for all definitions: all sizes that occur, no values."""
    return TracingConfigRegistry(TracingConfig())


def get_full_configs() -> TracingConfigRegistry:
    """Dense operators and experts once for each size, attention by average length, all others by default."""
    return TracingConfigRegistry(TracingConfig(), rules=_FULL_RULES)


def get_attention_only_configs() -> TracingConfigRegistry:
    """Attention like `get_full_configs`; nothing else is traced."""
    return TracingConfigRegistry(None, rules=_ATTENTION_RULES)


# -- reading -----------------------------------------------------------------------------------------

Settings: TypeAlias = (
    "TracingConfig | Mapping[str, TracingConfig] | TracingConfigRegistry | str | os.PathLike[str] | None"
)
"""Settings for all definitions, by definition, a registry, a YAML file, or None for `get_full_configs`."""


@attrs.frozen
class _FileFields(RuntimeOptions):
    """The keys of a settings file."""

    default: Any = None
    rules: Any = ()
    definitions: Any = None


@attrs.frozen
class _RuleFields(TracingConfig):
    """The keys of a rule in a settings file."""

    op_type: str = "*"
    name: str = "*"


def _read(file: SettingsFile) -> tuple[TracingConfigRegistry, RuntimeOptions]:
    fields = file.read(_FileFields)
    is_untraced = "default" in file.names() and file.value("default") is None
    default = None if is_untraced else file.read(TracingConfig, "default")
    definitions = {name: file.read(TracingConfig, "definitions", name) for name in file.names("definitions")}
    rules = file.value("rules") or []
    if not isinstance(rules, list):
        file.note("expected a list of mappings with op_type, name and policies", "rules")
        rules = []
    read = [file.read(_RuleFields, "rules", index) for index in range(len(rules))]
    file.check()
    options = RuntimeOptions(**_common_fields(RuntimeOptions, fields))
    found = tuple(Rule(TracingConfig(**_common_fields(TracingConfig, rule)), rule.op_type, rule.name) for rule in read)
    return TracingConfigRegistry(default, definitions, found), options


def _common_fields(cls: type[attrs.AttrsInstance], instance: object) -> dict[str, Any]:
    """The values of a class's fields in an instance of a subclass."""
    return {name: getattr(instance, name) for name in attrs.fields_dict(cls)}


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
        settings = os.environ.get(CONFIG_VARIABLE) or get_full_configs()
    options = RuntimeOptions()
    if isinstance(settings, str | os.PathLike):
        settings, options = _read(SettingsFile.load(settings))
    elif isinstance(settings, TracingConfig):
        settings = TracingConfigRegistry(settings)
    elif isinstance(settings, Mapping):
        settings = TracingConfigRegistry(None, dict(settings))
    elif not isinstance(settings, TracingConfigRegistry):
        raise InvalidSetting("tracing_config", settings, "a TracingConfig, a registry, a mapping by definition, a file")
    return settings, attrs.evolve(options, **{name: value for name, value in given.items() if value is not None})
