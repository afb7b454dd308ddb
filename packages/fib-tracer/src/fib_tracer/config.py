"""Settings of tracing: which calls of which definitions are kept, and which of their inputs are stored.

`TracingConfig` holds the policies for a definition, `TracingConfigRegistry` the settings of all definitions, by name
and by rules. `get_default_configs`, `get_full_configs` and `get_attention_only_configs` are presets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import yaml
from fib_schema import Definition, UnknownName
from fib_schema.files import write_output

from .errors import InvalidSetting
from .policies.dumping import DumpByFunction, DumpNamed, InputDumpPolicy
from .policies.filtering import AllOf, FilterPolicy, KeepFirstKByAxes
from .policies.registry import PolicyRegistry

ENABLE_VARIABLE = "FIB_ENABLE_TRACING"
"""``1`` enables tracing when calls are first routed."""
CONFIG_VARIABLE = "FIB_TRACING_CONFIG"
"""A YAML file with the settings that `ENABLE_VARIABLE` uses; `get_full_configs` if it is not set."""


@attrs.frozen
class TracingConfig:
    """The policies for a definition. Each definition has its own policy objects, made at its first call.

    Raises:
        InvalidSetting: A policy cannot be made from a setting (a ValueError).
        UnknownName: No policy has that name (a KeyError).
    """

    input_dump_policy: Any = "dump_none"
    """A policy's name; a list of names of inputs and policies; a function of the inputs; or a policy.

    In a list, names of inputs that a definition does not have are ignored.
    """
    input_dump_policy_kwargs: Mapping[str, Any] = attrs.field(factory=dict)
    filter_policy: Any = "keep_all"
    """A policy's name; a list of names or of mappings like ``{"name": ..., **kwargs}``, all of which must keep a call;
    or a function that makes a policy."""
    filter_policy_kwargs: Mapping[str, Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        for name in ("input_dump_policy_kwargs", "filter_policy_kwargs"):
            if not isinstance(kwargs := getattr(self, name), Mapping) or not all(isinstance(k, str) for k in kwargs):
                raise InvalidSetting(name, kwargs, "a mapping by the names of arguments")
        self.make_dump_policy()
        self.make_filter_policy()

    def make_dump_policy(self) -> InputDumpPolicy:
        """A new input dump policy, unless the setting is a policy itself."""
        setting, kwargs = self.input_dump_policy, dict(self.input_dump_policy_kwargs)
        if isinstance(setting, InputDumpPolicy):
            return setting
        if isinstance(setting, str):
            make = PolicyRegistry.get_input_dump_policy(setting)
            policy: InputDumpPolicy = _make_policy("input_dump_policy", InputDumpPolicy, make, kwargs)
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
        setting, kwargs = self.filter_policy, dict(self.filter_policy_kwargs)
        if isinstance(setting, str):
            return _make_filter(setting, kwargs)
        if isinstance(setting, Sequence):
            parts = [dict(part) if isinstance(part, Mapping) else {"name": part} for part in setting]
            return AllOf([_make_filter(part.pop("name", None), part) for part in parts])
        if callable(setting):
            policy: FilterPolicy = _make_policy("filter_policy", FilterPolicy, setting, kwargs)
            return policy
        raise InvalidSetting("filter_policy", setting, "a policy's name, a list of them, or a function that makes one")

    def named_inputs(self) -> tuple[str, ...]:
        """The inputs that the settings name."""
        policy = self.make_dump_policy()
        return policy.names if isinstance(policy, DumpNamed) else ()

    def named_axes(self) -> tuple[str, ...]:
        """The axes that the settings name."""
        policy = self.make_filter_policy()
        policies = policy.policies if isinstance(policy, AllOf) else (policy,)
        return tuple(name for part in policies if isinstance(part, KeepFirstKByAxes) for name in part.axes or ())

    def to_plain(self) -> dict[str, Any]:
        """As plain objects, for YAML.

        Raises:
            InvalidSetting: A policy is given as a function or object, which has no name.
        """
        plain = {name: _plain(name, value) for name, value in attrs.asdict(self, recurse=False).items()}
        return {name: value for name, value in plain.items() if value or not name.endswith("_kwargs")}

    @classmethod
    def from_plain(cls, plain: Any) -> TracingConfig:
        """The settings that `to_plain` returned.

        Raises:
            InvalidSetting: It is something else.
        """
        fields = [field.name for field in attrs.fields(cls)]
        if not isinstance(plain, Mapping) or not plain.keys() <= set(fields):
            raise InvalidSetting("tracing config", plain, "a mapping of " + ", ".join(fields))
        return cls(**plain)


def _make_filter(name: Any, kwargs: dict[str, Any]) -> FilterPolicy:
    if not isinstance(name, str):
        raise InvalidSetting("filter_policy", name, "a policy's name")
    if isinstance(kwargs.get("key"), str):
        kwargs["key"] = _import_function(kwargs["key"])
    make = PolicyRegistry.get_filter_policy(name)
    policy: FilterPolicy = _make_policy("filter_policy", FilterPolicy, make, kwargs)
    return policy


def _import_function(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidSetting("key", path, f"a function as 'module:name' ({error})") from error


def _make_policy(setting: str, base: type, make: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        policy = make(**kwargs)
    except TypeError as error:
        name = getattr(make, "__name__", make)
        raise InvalidSetting(f"{setting}_kwargs", dict(kwargs), f"arguments of {name}: {error}") from error
    if not isinstance(policy, base):
        raise InvalidSetting(setting, policy, f"a {base.__name__}")
    return policy


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(name, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(name, item) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise InvalidSetting(name, value, "a name: functions and objects cannot be written to a file")


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
            UnknownName: There is no such definition; or none of the definitions that settings apply to has such an
                input or axis.
        """
        for name in self.per_definition:
            if name not in (definitions if names is None else names):
                raise UnknownName("definition", name, tuple(names or definitions))
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

    def to_yaml(self) -> str:
        """As YAML that `from_yaml` reads."""
        rules = [{"op_type": rule.op_type, "name": rule.name, **rule.config.to_plain()} for rule in self.rules]
        content = {
            "default": None if self.default is None else self.default.to_plain(),
            "rules": rules,
            "definitions": {name: config.to_plain() for name, config in self.per_definition.items()},
        }
        return yaml.safe_dump(content, sort_keys=False)

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
            InvalidSetting: The text has another form.
        """
        try:
            content = yaml.safe_load(text) or {}
        except yaml.YAMLError as error:
            raise InvalidSetting("tracing settings", text[:60], f"YAML ({error})") from error
        if not isinstance(content, Mapping) or not content.keys() <= {"default", "rules", "definitions"}:
            raise InvalidSetting("tracing settings", content, "a mapping of default, rules and definitions")
        default = content.get("default", {})
        definitions, rules = content.get("definitions") or {}, content.get("rules") or []
        if not isinstance(definitions, Mapping) or not all(isinstance(name, str) for name in definitions):
            raise InvalidSetting("definitions", definitions, "a mapping of names of definitions to their settings")
        if not isinstance(rules, list):
            raise InvalidSetting("rules", rules, "a list of mappings with op_type, name and policies")
        return cls(
            None if default is None else TracingConfig.from_plain(default),
            {name: TracingConfig.from_plain(plain) for name, plain in definitions.items()},
            tuple(_rule(plain) for plain in rules),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TracingConfigRegistry:
        """Settings from a YAML file.

        Raises:
            InvalidSetting: The file has another form.
            OSError: It could not be read.
        """
        data = Path(path).read_bytes()
        try:
            return cls.from_yaml(data.decode())
        except UnicodeDecodeError as error:
            raise InvalidSetting("tracing settings", data[:60], f"YAML in UTF-8 ({error})") from error


def _rule(plain: Any) -> Rule:
    if not isinstance(plain, Mapping):
        raise InvalidSetting("rules", plain, "mappings with op_type, name and policies")
    patterns = {key: plain[key] for key in ("op_type", "name") if key in plain}
    if not all(isinstance(pattern, str) for pattern in patterns.values()):
        raise InvalidSetting("rules", patterns, "patterns as text")
    return Rule(TracingConfig.from_plain({key: plain[key] for key in plain if key not in patterns}), **patterns)


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
