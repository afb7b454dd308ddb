"""What a user decides about tracing: for which definitions, which calls are kept and what of them is stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import yaml
from fib_schema import Definition, FibError, UnknownName

from .errors import InvalidSetting
from .policies.dumping import DumpChosen, DumpNamed, InputDumpPolicy
from .policies.filtering import AllOf, FilterPolicy, KeepFirstKByAxes
from .policies.registry import PolicyRegistry

ENABLE_VARIABLE = "FIB_ENABLE_TRACING"
"""``1`` enables tracing when calls are first routed."""
CONFIG_VARIABLE = "FIB_TRACING_CONFIG"
"""A YAML file with the settings that `ENABLE_VARIABLE` uses; without it, those of `get_full_configs`."""


@attrs.frozen
class TracingConfig:
    """How calls of a definition are traced.

    Each definition that it applies to has policies of its own, made when its first call is seen.

    Raises:
        InvalidSetting: A policy cannot be made of what is given (a ValueError).
        UnknownName: No policy has that name (a KeyError).
    """

    input_dump_policy: Any = "dump_none"
    """A policy's name; a list of inputs' and policies' names; a function of the inputs; or a policy.

    In a list, an input that a definition does not have is passed over.
    """
    input_dump_policy_kwargs: Mapping[str, Any] = attrs.field(factory=dict)
    filter_policy: Any = "keep_all"
    """A policy's name; a list of names or of mappings like ``{"name": ..., **kwargs}``, all of which must want a call;
    or a function that makes a policy."""
    filter_policy_kwargs: Mapping[str, Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        for name in ("input_dump_policy_kwargs", "filter_policy_kwargs"):
            if not isinstance(options := getattr(self, name), Mapping) or not all(isinstance(o, str) for o in options):
                raise InvalidSetting(name, options, "a mapping by the names of arguments")
        self.make_dump_policy()
        self.make_filter_policy()

    def make_dump_policy(self) -> InputDumpPolicy:
        """The policy that chooses inputs."""
        setting, options = self.input_dump_policy, dict(self.input_dump_policy_kwargs)
        if isinstance(setting, InputDumpPolicy):
            return setting
        if isinstance(setting, str):
            dump: InputDumpPolicy = _made(
                "input_dump_policy", InputDumpPolicy, PolicyRegistry.get_input_dump_policy(setting), options
            )
            return dump
        if callable(setting):
            return DumpChosen(setting)
        if not isinstance(setting, Sequence) or not all(isinstance(name, str) for name in setting):
            raise InvalidSetting("input_dump_policy", setting, "a policy's name, a list of inputs, or a function")
        known = PolicyRegistry.list_input_dump_policies()
        others = [PolicyRegistry.get_input_dump_policy(name)() for name in setting if name in known]
        return DumpNamed([name for name in setting if name not in known], others)

    def make_filter_policy(self) -> FilterPolicy:
        """A policy that has kept nothing yet."""
        setting, options = self.filter_policy, dict(self.filter_policy_kwargs)
        if isinstance(setting, str):
            return _named_filter(setting, options)
        if isinstance(setting, Sequence):
            parts = [part if isinstance(part, Mapping) else {"name": part} for part in setting]
            return AllOf([_named_filter(part.get("name"), _without_name(part)) for part in parts])
        if callable(setting):
            made: FilterPolicy = _made("filter_policy", FilterPolicy, setting, options)
            return made
        raise InvalidSetting("filter_policy", setting, "a policy's name, a list of them, or what makes a policy")

    def named_inputs(self) -> tuple[str, ...]:
        """The inputs that are set to be stored by their names."""
        policy = self.make_dump_policy()
        return policy.names if isinstance(policy, DumpNamed) else ()

    def named_axes(self) -> tuple[str, ...]:
        """The axes by whose names calls are told apart."""
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
        """The settings of what `to_plain` returned.

        Raises:
            InvalidSetting: It is something else.
        """
        fields = [field.name for field in attrs.fields(cls)]
        if not isinstance(plain, Mapping) or not plain.keys() <= set(fields):
            raise InvalidSetting("tracing config", plain, "a mapping of " + ", ".join(fields))
        return cls(**plain)


def _without_name(part: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != "name"}


def _named_filter(name: Any, options: dict[str, Any]) -> FilterPolicy:
    if not isinstance(name, str):
        raise InvalidSetting("filter_policy", name, "a policy's name")
    if isinstance(options.get("key"), str):
        options["key"] = _imported(options["key"])
    made: FilterPolicy = _made("filter_policy", FilterPolicy, PolicyRegistry.get_filter_policy(name), options)
    return made


def _imported(path: str) -> Any:
    """The function that ``module:name`` stands for."""
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidSetting("key", path, f"a function as 'module:name' ({error})") from error


def _made(name: str, kind: type, make: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    try:
        made = make(**options)
    except TypeError as error:
        raise InvalidSetting(
            f"{name}_kwargs", dict(options), f"what {getattr(make, '__name__', make)} takes: {error}"
        ) from error
    if not isinstance(made, kind):
        raise InvalidSetting(name, made, f"a {kind.__name__}")
    return made


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
        """Whether a definition is meant."""
        return fnmatchcase(definition.op_type, self.op_type) and fnmatchcase(definition.name, self.name)


def _to_dict(value: Mapping[str, TracingConfig]) -> dict[str, TracingConfig]:
    return dict(value)


def _to_rules(value: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(value)


@attrs.define
class TracingConfigRegistry:
    """Settings by definition, by rules, and those of all others.

    A definition's own settings come first, then the first rule that matches, then the default; without a default,
    a definition that nothing else is for is not traced.
    """

    default: TracingConfig | None = attrs.field(factory=TracingConfig)
    per_definition: dict[str, TracingConfig] = attrs.field(factory=dict, converter=_to_dict)
    rules: tuple[Rule, ...] = attrs.field(default=(), converter=_to_rules)

    def __attrs_post_init__(self) -> None:
        for name, config in {
            **self.per_definition,
            **({} if self.default is None else {"default": self.default}),
        }.items():
            _check_config(name, config)

    def get(self, name: str, definition: Definition | None = None) -> TracingConfig | None:
        """The settings of a definition; rules need the definition itself."""
        if name in self.per_definition:
            return self.per_definition[name]
        rules = () if definition is None else (rule for rule in self.rules if rule.matches(definition))
        return next((rule.config for rule in rules), self.default)

    def register(self, name: str, config: TracingConfig, override: bool = False) -> None:
        """Set those of one definition.

        Raises:
            InvalidSetting: It has some already, and `override` is false.
        """
        self.register_many({name: config}, override)

    def register_many(self, configs: Mapping[str, TracingConfig], override: bool = False) -> None:
        """Set those of several definitions, or of none if one of them cannot be set."""
        for name, config in configs.items():
            _check_config(name, config)
            if name in self.per_definition and not override:
                raise InvalidSetting(name, config, "override=True, for this definition has settings already")
        self.per_definition.update(configs)

    def check(self, definitions: Mapping[str, Definition]) -> None:
        """Refuse names that match nothing in a data set.

        Raises:
            UnknownName: There is no such definition, or no definition that settings are for has such an input or axis.
        """
        for name in self.per_definition:
            if name not in definitions:
                raise UnknownName("definition", name, tuple(definitions))
        meant: dict[int, list[Definition]] = {}
        configs: dict[int, TracingConfig] = {}
        for name in definitions:
            try:
                definition = definitions[name]
            except (FibError, OSError):
                return  # a damaged one may have what is named; it is reported when it is called
            if (config := self.get(name, definition)) is not None:
                configs[id(config)] = config
                meant.setdefault(id(config), []).append(definition)
        for key, config in configs.items():
            inputs = {name for definition in meant[key] for name in definition.inputs}
            axes = {name for definition in meant[key] for name in definition.axes}
            for kind, named, known in (("input", config.named_inputs(), inputs), ("axis", config.named_axes(), axes)):
                if lost := set(named) - known:
                    raise UnknownName(kind, min(lost), tuple(sorted(known)))

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
        """Write a YAML file."""
        Path(path).write_text(self.to_yaml(), encoding="utf-8")

    @classmethod
    def from_yaml(cls, text: str) -> TracingConfigRegistry:
        """Settings from YAML with the keys ``default``, ``rules`` and ``definitions``, each of which may be missing.

        Raises:
            InvalidSetting: It is no such text.
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
            raise InvalidSetting("definitions", definitions, "a mapping of definitions' names to their settings")
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
            InvalidSetting: It holds none.
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


def _check_config(name: str, config: object) -> None:
    if not isinstance(config, TracingConfig):
        raise InvalidSetting(name, config, "a TracingConfig")


Settings: TypeAlias = (
    "TracingConfig | Mapping[str, TracingConfig] | TracingConfigRegistry | str | os.PathLike[str] | None"
)
"""What users may pass: settings for all, by definition, a registry, a YAML file, or the full preset."""


def to_registry(settings: Settings) -> TracingConfigRegistry:
    """Settings by definition, whatever form they were given in.

    Raises:
        InvalidSetting: They are no settings.
    """
    if settings is None:
        from .policies.presets import get_full_configs

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
