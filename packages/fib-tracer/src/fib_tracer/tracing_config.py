"""Settings of one definition: `TracingConfig` names the policies, `Rule` applies them by patterns.

`RuntimeOptions` are the options of a runtime that settings files can have too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

import attrs
from fib_schema import Definition

from .errors import InvalidSetting
from .policies.dumping import DumpByFunction, DumpNamed, InputDumpPolicy
from .policies.filtering import AllOf, FilterPolicy, KeepFirstKByAxes
from .policies.registry import PolicyRegistry

ENABLE_VARIABLE = "FIB_ENABLE_TRACING"
"""``1`` enables tracing when calls are first routed."""
CONFIG_VARIABLE = "FIB_TRACING_CONFIG"
"""A YAML file with the settings of all runtimes whose program passes none; `get_full_configs` if it is not set."""
DEFAULT_BYTES = 256 << 20
DEFAULT_MAX_KEPT = 65_536


@attrs.frozen
class RuntimeOptions:
    """Options of a `TracingRuntime` that are not of single definitions.

    Raises:
        InvalidSetting: One has a value that is not allowed (a ValueError).
    """

    max_bytes: int = DEFAULT_BYTES
    """Bytes of copies that may be in memory at a time."""
    wait_seconds: float = 0.0
    """Longest wait of a call for memory; 0 drops it immediately and counts it."""
    drafts: bool = False
    """Whether drafts are made of definitions that the data set lacks."""
    exit_seconds: float = 30.0
    """Longest wait of the end of the process while nothing is stored; it waits on as long as entries are stored."""

    def __attrs_post_init__(self) -> None:
        if type(self.max_bytes) is not int or self.max_bytes < 1:
            raise InvalidSetting("max_bytes", self.max_bytes, "an integer from 1 on")
        for name in ("wait_seconds", "exit_seconds"):
            seconds = getattr(self, name)
            if type(seconds) not in (int, float) or not 0 <= seconds < float("inf"):
                raise InvalidSetting(name, seconds, "a number of seconds from 0 on")
        if type(self.drafts) is not bool:
            raise InvalidSetting("drafts", self.drafts, "true or false")


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
    max_kept: int | None = DEFAULT_MAX_KEPT
    """Calls that a process keeps of a definition; later ones are only counted. None for no limit.

    Threads may exceed it by one call each."""

    def __attrs_post_init__(self) -> None:
        for name in ("input_dump_policy_kwargs", "filter_policy_kwargs"):
            if not isinstance(kwargs := getattr(self, name), Mapping) or not all(isinstance(k, str) for k in kwargs):
                raise InvalidSetting(name, kwargs, "a mapping by the names of arguments")
        if self.max_kept is not None and (type(self.max_kept) is not int or self.max_kept < 1):
            raise InvalidSetting("max_kept", self.max_kept, "an integer from 1 on, or None")
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
