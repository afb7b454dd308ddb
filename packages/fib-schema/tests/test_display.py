"""Escaping of control characters and invisible characters in text that comes from data."""

import json
import unicodedata

import pytest
from fib_schema.display import aligned, counted, escape_controls, escape_line, escape_values
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fast\u202egpj", r"fast\u202egpj"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\rb\x07\x00", r"a\rb\x07\x00"),
        ("\x9b31m\x85", r"\x9b31m\x85"),
        ("zero\u200bwidth\u200d\u2060\ufeff", r"zero\u200bwidth\u200d\u2060\ufeff"),
        ("x\ufe0f\U000e0100\U000e01ef", r"x\ufe0f\U000e0100\U000e01ef"),
        ("no\u3164shape\u115f\uffa0\u034f", r"no\u3164shape\u115f\uffa0\u034f"),
        ("lines\u2028and\u2029paragraphs", r"lines\u2028and\u2029paragraphs"),
        ("half \udcff", r"half \udcff"),
        ("tag \U000e0041", r"tag \U000e0041"),
        ("tabs\tand\nlines stay", "tabs\tand\nlines stay"),
        ("größer 測試\u3000\xa0 😀", "größer 測試\u3000\xa0 😀"),
    ],
)
def test_what_cannot_be_seen_is_escaped(text, shown):
    assert escape_controls(text) == shown


def test_a_line_stays_one_line():
    assert escape_line("name\nforged row\t1") == r"name\nforged row\t1"
    assert list(aligned([("name", "count"), ("a\nb", "1"), ("long", "")])) == ["name  count", r"a\nb  1", "long"]


@given(st.text())
def test_no_control_or_format_character_is_left(text):
    shown = escape_line(text)
    assert not {unicodedata.category(letter) for letter in shown} & {"Cc", "Cs", "Zl", "Zp"}
    assert not any("\u200b" <= letter <= "\u200f" or "\u202a" <= letter <= "\u202e" for letter in shown)
    assert escape_line(shown) == shown


def test_values_are_escaped_in_depth_and_json_is_left_as_it_is():
    escaped = {r"a\x1b": [r"\u202e", {"b": [r"\x9b", 1, None]}]}
    assert escape_values({"a\x1b": ["\u202e", {"b": ("\x9b", 1, None)}]}) == escaped
    text = json.dumps("\u202e\x1b\n", indent=2)
    assert escape_controls(text) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 entries"), (1, "1 entry"), (2, "2 entries")])
def test_a_count_agrees_with_its_noun(count, text):
    assert counted(count, "entry", "entries") == text
    assert counted(count, "trace") == ("1 trace" if count == 1 else f"{count} traces")
