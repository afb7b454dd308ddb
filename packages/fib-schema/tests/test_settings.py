"""Files of settings: every problem of a file is named with its line and its remedy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import attrs
import pytest
from fib_schema import InvalidField
from fib_schema.settings import ConfigProblem, InvalidConfigFile, InvalidSetting, SettingsFile
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("yaml")


class Mode(StrEnum):
    """Reading after an error."""

    RAISE = "raise"
    FALLBACK = "fallback"


def to_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def positive(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if value <= 0:
        raise InvalidSetting(attribute.name, value, "a number > 0")


def short(instance: object, attribute: attrs.Attribute[Any], value: str) -> None:
    if len(value) > 9:
        raise InvalidField(f"Part.{attribute.name}", f"must be short, got {value!r}")


@attrs.frozen(kw_only=True)
class Part:
    margin: float = attrs.field(default=0.5, validator=positive)
    count: int | None = None
    name: str = attrs.field(default="", validator=short)
    mode: Mode = Mode.RAISE
    flag: bool = False
    names: tuple[str, ...] = ()
    either: Any = attrs.field(default=(), converter=to_tuple)

    def __attrs_post_init__(self) -> None:
        if self.flag and self.count == 0:
            raise InvalidSetting("count", 0, "more than 0 with 'flag'")


@attrs.frozen
class Bound:
    atol: float
    rtol: float


@attrs.frozen(kw_only=True)
class Whole:
    default: Part | None = attrs.field(factory=Part)
    parts: Mapping[str, Part] = attrs.field(factory=dict)
    bounds: Mapping[str, Bound] = attrs.field(factory=dict)
    rules: tuple[Part, ...] = ()
    seed: int = 0


def read(text: str | bytes, cls: type[Any] = Whole, *keys: str | int, **options: Any) -> Any:
    file = SettingsFile.parse(text if isinstance(text, bytes) else text.encode(), "a.yaml")
    found = file.read(cls, *keys, **options)
    file.check()
    return found


def problems_of(text: str | bytes, **options: Any) -> list[tuple[int | None, str, str]]:
    with pytest.raises(InvalidConfigFile) as raised:
        read(text, **options)
    return [attrs.astuple(problem) for problem in raised.value.problems]


class TestContent:
    def test_all_kinds_of_fields(self):
        text = """
            default: {margin: 1e-2, count: 3, name: '1e-2', mode: fallback, flag: true, names: [a, b], either: c}
            parts: {x: {margin: 2, count: null}, y: }
            bounds: {float16: {atol: 1, rtol: 0.5}}
            rules: [{name: a}, {name: b}]
        """
        default = Part(
            margin=0.01, count=3, name="1e-2", mode=Mode.FALLBACK, flag=True, names=("a", "b"), either=("c",)
        )
        assert read(text) == Whole(
            default=default,
            parts={"x": Part(margin=2), "y": Part()},
            bounds={"float16": Bound(1, 0.5)},
            rules=(Part(name="a"), Part(name="b")),
        )

    @pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "parts:\nrules:\n"])
    def test_what_is_not_given_has_its_default(self, text):
        assert read(text) == Whole()

    def test_a_field_can_be_none_where_its_type_says_so(self):
        assert read("default: null") == Whole(default=None)
        assert problems_of("seed: null") == [(1, "seed", "got None, expected a whole number")]

    def test_a_base_has_what_is_not_given(self):
        base = Part(margin=3, count=2)
        assert read("parts: {x: {count: null}}", Part, "parts", "x", base=base) == Part(margin=3)
        assert read("parts: {x: }", Part, "parts", "x", base=base) == base

    def test_parts_are_read_by_their_names(self):
        file = SettingsFile.parse(b"parts: {x: 1, y: 2}\nrules: [3]\nseed: 1", "a.yaml")
        assert file.names("parts") == ("x", "y")
        assert file.names("missing") == ()
        assert (file.value("rules", 0), file.value("rules", 1), file.value("seed", "x")) == (3, None, None)
        assert file.names("seed") == ()
        assert file.problems == [ConfigProblem(3, "seed", "got 1, expected a mapping of names to values")]


class TestProblems:
    def test_all_are_named_with_line_and_remedy(self):
        text = """default:
  margn: 1
  margin: -1
  margin: 2
  count: 1.5
  flag: 1
parts:
  x: {name: a very long name, mode: stop, names: a}
  y: [1]
bounds:
  float16: {atol: 1}
  float32: 3
rules: [{}, {count: '1'}]
sed: 0
"""
        assert problems_of(text) == [
            (2, "default.margn", "no setting is named 'margn'; did you mean 'margin'?"),
            (3, "default.margin", "got -1, expected a number > 0"),
            (4, "default.margin", "given twice; remove one"),
            (5, "default.count", "got 1.5, expected a whole number"),
            (6, "default.flag", "got 1, expected true or false"),
            (8, "parts.x.name", "must be short, got 'a very long name'"),
            (8, "parts.x.mode", "got 'stop', expected one of 'raise', 'fallback'"),
            (8, "parts.x.names", "got 'a', expected a list"),
            (9, "parts.y", "got [1], expected a mapping of settings to values"),
            (11, "bounds.float16.rtol", "is missing"),
            (12, "bounds.float32", "got 3, expected a mapping of settings to values"),
            (13, "rules[1].count", "got '1', expected a whole number"),
            (14, "sed", "no setting is named 'sed'; did you mean 'seed'?"),
        ]

    def test_settings_that_contradict_each_other(self):
        assert problems_of("default:\n  flag: true\n  count: 0") == [
            (3, "default.count", "got 0, expected more than 0 with 'flag'")
        ]

    @pytest.mark.parametrize(
        ("text", "line", "message"),
        [
            ("default: {", 1, "not valid YAML: expected the node content, but found"),
            ("default: {margin: 2026-13-45}", 1, "not a plain value: month must be in"),
            ("default: {name: !!python/object:os.system x}", 1, "not a plain value"),
            ("- default", 1, "expected a mapping of settings to values"),
            ("? [a]\n: 1", 1, "keys must be names"),
            ("\x00", None, "not valid YAML"),
            (b"a: \xff", None, "save it as UTF-8 text"),
            ("default: {margin: " + "9" * 5000 + "}", 1, "not a plain value"),
        ],
    )
    def test_texts_that_are_no_settings(self, text, line, message):
        ((found, _, problem),) = problems_of(text)
        assert found == line
        assert message in problem

    def test_the_error_names_file_and_lines(self):
        problems = (ConfigProblem(3, "a.b", "is bad"), ConfigProblem(None, "", "is worse"))
        error = InvalidConfigFile("a.yaml", problems)
        assert str(error) == "the configuration is not valid:\n  a.yaml:3: a.b: is bad\n  a.yaml: is worse"

    def test_long_values_are_shortened(self):
        assert InvalidSetting("a", "x" * 200, "less").problem == "got '" + "x" * 79 + "..., expected less"

    @given(st.text() | st.binary())
    def test_no_content_raises_another_error(self, content):
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        with contextlib.suppress(InvalidConfigFile):
            read(data)


class TestFiles:
    def test_what_is_no_file_of_settings_is_refused_without_waiting(self, tmp_path):
        path = tmp_path / "a.yaml"
        path.write_text("seed: 1")
        assert SettingsFile.load(path).read(Whole).seed == 1
        with pytest.raises(OSError, match="at most 3 are read"):
            SettingsFile.load(path, max_bytes=3)
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(OSError, match="it is a named pipe, not a regular file"):
            SettingsFile.load(tmp_path / "pipe")
