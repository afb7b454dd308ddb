import json
import math
import pickle

import pytest
from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    CompileOptions,
    Correctness,
    Definition,
    DType,
    Environment,
    Evaluation,
    EvaluationStatus,
    InvalidRecord,
    Performance,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    Solution,
    SourceFile,
    SupportedBindings,
    SupportedLanguages,
    TensorSpec,
    Trace,
    Workload,
    append_jsonl_file,
    format_json,
    load_json_file,
    load_jsonl_file,
    parse_json,
    save_json_file,
    save_jsonl_file,
    to_plain,
)
from fib_schema.codec import canonical_parser, decode, structure
from hypothesis import given
from hypothesis import strategies as st

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True).filter(lambda n: n not in {".", ".."})
AXES = st.sampled_from(["M", "N", "K"])
NUMBERS = st.floats(min_value=0) | st.just(math.nan)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)
UNKNOWN = st.dictionaries(st.sampled_from(["x_new", "x_other"]), JSON, max_size=2)
INPUTS = (
    st.builds(RandomInput, unknown_fields=UNKNOWN)
    | st.builds(ScalarInput, st.booleans() | st.integers(-(2**53), 2**53) | st.floats(), unknown_fields=UNKNOWN)
    | st.builds(SafetensorsInput, NAMES.map("blob/{}".format), TEXT)
)
WORKLOADS = st.builds(
    Workload,
    st.dictionaries(AXES, st.integers(0, 2**40)),
    st.dictionaries(TEXT, INPUTS, max_size=3),
    NAMES,
    unknown_fields=UNKNOWN,
)
CORRECTNESS = st.builds(Correctness, NUMBERS, NUMBERS, st.none() | OBJECTS, unknown_fields=UNKNOWN)
PERFORMANCE = st.builds(Performance, NUMBERS, NUMBERS, NUMBERS, st.none() | OBJECTS)
ENVIRONMENTS = st.builds(Environment, TEXT, st.dictionaries(TEXT, TEXT, max_size=3), unknown_fields=UNKNOWN)


@st.composite
def evaluations(draw):
    status = draw(st.sampled_from(EvaluationStatus))
    judged = status in (EvaluationStatus.PASSED, EvaluationStatus.INCORRECT_NUMERICAL)
    return Evaluation(
        status,
        draw(ENVIRONMENTS),
        draw(TEXT),
        draw(TEXT),
        draw(CORRECTNESS) if judged else None,
        draw(PERFORMANCE) if status is EvaluationStatus.PASSED else None,
        draw(st.none() | OBJECTS),
        unknown_fields=draw(UNKNOWN),
    )


TRACES = st.builds(Trace, NAMES, WORKLOADS, unknown_fields=UNKNOWN) | st.builds(
    Trace, NAMES, WORKLOADS, NAMES, evaluations()
)
TENSORS = st.builds(
    TensorSpec,
    st.none() | st.lists(AXES, max_size=3),
    st.sampled_from(DType),
    st.none() | TEXT,
    st.booleans(),
    unknown_fields=UNKNOWN,
)
DEFINITIONS = st.builds(
    Definition,
    name=NAMES,
    op_type=NAMES,
    axes=st.fixed_dictionaries({n: st.builds(AxisConst, st.integers(0, 9)) | st.builds(AxisVar) for n in "MNK"}),
    inputs=st.dictionaries(st.sampled_from("abc"), TENSORS),
    outputs=st.dictionaries(st.sampled_from("xyz"), TENSORS),
    reference=st.just("def run(): ..."),
    tags=st.lists(TEXT, max_size=2),
    description=st.none() | TEXT,
    constraints=st.lists(st.just("M == N"), max_size=1),
    extra=OBJECTS,
    unknown_fields=UNKNOWN,
)
FLAGS = st.lists(TEXT, max_size=2)
SOLUTIONS = st.builds(
    Solution,
    name=NAMES,
    definition=NAMES,
    author=NAMES,
    spec=st.builds(
        BuildSpec,
        st.sampled_from(SupportedLanguages),
        st.lists(TEXT, min_size=1, max_size=2),
        st.just("main.py::run"),
        st.lists(TEXT, max_size=2),
        st.booleans(),
        st.none() | st.sampled_from(SupportedBindings),
        st.none() | st.builds(CompileOptions, FLAGS, FLAGS, FLAGS, unknown_fields=UNKNOWN),
        unknown_fields=UNKNOWN,
    ),
    sources=TEXT.map(lambda text: [SourceFile("main.py", text), SourceFile("pkg/other.py", text)]),
    description=st.none() | TEXT,
    extra=OBJECTS,
    unknown_fields=UNKNOWN,
)
RECORDS = TRACES | DEFINITIONS | SOLUTIONS


@given(RECORDS)
def test_every_record_survives_a_round_trip(record):
    again = parse_json(format_json(record), type(record))
    without_keys = parse_json(format_json(again), type(record))
    assert to_text(again) == to_text(record)
    assert to_text(without_keys) == to_text(record)


def to_text(record):
    return json.dumps(to_plain(record), sort_keys=True)


@given(RECORDS)
def test_every_record_pickles(record):
    again = pickle.loads(pickle.dumps(record))
    assert to_text(again) == to_text(record)


@given(TRACES)
def test_a_line_that_is_parsed_directly_is_what_the_full_parser_reads(trace):
    line = format_json(trace).encode()
    try:
        found = canonical_parser(Trace)(line)
    except ValueError:  # not canonical, such as unknown fields
        return
    general = structure(decode(line, "Trace", source=""), Trace)
    assert found == general
    assert to_text(found) == to_text(general)  # which tells 1 from True and 1.0


MUTATIONS = [
    b'"uuid":3', b'"uuid":"../x"', b'"axes":{"M":4.7}', b'"axes":{"M":true}', b'"axes":{"M":-1}', b'"solution":7',
    b'"definition":"a/b"', b'"status":"SOLVED"', b'"latency_ms":-1', b'"latency_ms":"fast"', b'"latency_ms":true',
    b'"max_absolute_error":"-Infinity"', b'"inputs":{"A":{"type":"rnd"}}', b'"inputs":{"A":{}}', b'"libs":{"a":1}',
    b'"correctness":null', b'"performance":null', b'"evaluation":null', b'"log":null', b'"extra":3', b'"hardware":0',
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_line_with_a_wrong_value_is_refused(mutation, make_trace):
    plain = to_plain(make_trace())
    key, value = next(iter(json.loads(b"{" + mutation + b"}").items()))
    assert replace(plain, key, value), key
    line = json.dumps(plain).encode()
    with pytest.raises(InvalidRecord):
        parse_json(line, Trace)
    with pytest.raises((ValueError, TypeError, LookupError)):
        canonical_parser(Trace)(line)


@pytest.mark.parametrize(("value", "kind"), [("1", int), ("1.0", float), ("true", bool)])
def test_equal_scalars_of_other_types_are_kept_apart(value, kind):
    line = '{"definition":"d","workload":{"axes":{},"inputs":{"A":{"type":"scalar","value":%s}},"uuid":"u"}}'
    for text in ("1", "1.0", "true", value):
        found = canonical_parser(Trace)((line % text).encode())
    assert type(found.workload.inputs["A"].value) is kind
    with pytest.raises(ValueError, match="Expected `int`"):
        canonical_parser(Trace)(b'{"definition":"d","workload":{"axes":{"M":4.0},"inputs":{},"uuid":"u"}}')


def replace(plain, key, value):
    """Set a key wherever it belongs; returns whether it was found."""
    homes = {"extra": ["evaluation"], "log": ["evaluation"], "libs": ["evaluation", "environment"]}
    if key in homes:
        place = plain
        for step in homes[key]:
            place = place[step]
        place[key] = value
        return True
    for name, item in plain.items():
        if name == key:
            plain[key] = value
            return True
        if isinstance(item, dict) and replace(item, key, value):
            return True
    return False


def test_all_problems_of_a_record_are_reported_with_their_paths():
    text = b"""{"definition": "x", "workload": {"axes": {"M": 4.7, "N": true}, "uuid": 3,
        "inputs": {"a": {"type": "rnd"}, "b": {"type": "scalar", "value": "x"}}}}"""
    with pytest.raises(InvalidRecord) as caught:
        parse_json(text, Trace, source="f.jsonl:3")
    assert [(p.path, p.message) for p in caught.value.problems] == [
        ("$.workload.axes.M", "expected an integer, got number 4.7"),
        ("$.workload.axes.N", "expected an integer, got boolean True"),
        ("$.workload.inputs.a", "'type' is string 'rnd' (known: random, scalar, safetensors)"),
        ("$.workload.inputs.b.value", "expected a number, got string 'x'"),
        ("$.workload.uuid", "expected a string, got integer 3"),
    ]
    assert {p.source for p in caught.value.problems} == {"f.jsonl:3"}


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
def test_numbers_that_are_not_finite_are_read_in_both_spellings_and_written_as_strings(number):
    for spelling in (number, f'"{number}"'):
        found = parse_json(f'{{"max_relative_error": {spelling}, "max_absolute_error": 0}}', Correctness)
        assert str(found.max_relative_error) == str(float(number))
        assert json.loads(format_json(found))["max_relative_error"] == number


def test_an_integer_beyond_the_range_of_floats_is_a_problem():
    with pytest.raises(InvalidRecord, match=r"\$\.max_relative_error: cannot be read as a number"):
        parse_json('{"max_relative_error": 1%s}' % ("0" * 400), Correctness)


def test_unknown_fields_are_kept():
    text = '{"uuid":"w","later":{"a":[1,null]},"inputs":{"A":{"type":"random","seed":7}},"axes":{"M":1}}'
    assert json.loads(format_json(parse_json(text, Workload))) == json.loads(text)


SPEC = '{"language":"cpp","target_hardware":["cpu"],"entry_point":"k.cpp::run","compile_options":%s}'


def test_compile_options_are_kept():
    for options in ("{}", '{"ldflags":["-lm"],"later":[1],"cflags":["-O3","-g"]}'):
        written = json.loads(format_json(parse_json(SPEC % options, BuildSpec)))
        assert written["compile_options"] == json.loads(options)
    assert parse_json(SPEC % '{"cflags":["-O3"]}', BuildSpec).compile_options == CompileOptions(("-O3",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('{"cflags":["-O3",3]}', r"\$.compile_options.cflags\[1\]: expected a string, got integer 3"),
        ('{"ldflags":"-lm"}', r"\$.compile_options.ldflags: expected a list, got string '-lm'"),
        ("[]", r"\$.compile_options: expected an object, got list"),
    ],
)
def test_bad_compile_options_are_refused_with_their_path(options, message):
    with pytest.raises(InvalidRecord, match=message):
        parse_json(SPEC % options, BuildSpec)


def test_a_new_workload_trace_says_that_it_has_no_solution():
    plain = to_plain(Trace("d", Workload({}, {}, "w")))
    assert plain["solution"] is None
    assert plain["evaluation"] is None


def test_files_round_trip(tmp_path, definition, make_trace):
    path = tmp_path / "deep" / "d.json"
    save_json_file(definition, path)
    assert load_json_file(Definition, path) == definition
    lines = tmp_path / "t.jsonl"
    save_jsonl_file([make_trace(uuid="a")], lines)
    append_jsonl_file([make_trace(uuid="b"), make_trace(uuid="c")], lines)
    assert [t.workload.uuid for t in load_jsonl_file(Trace, lines)] == ["a", "b", "c"]


def test_all_bad_lines_are_reported_with_their_numbers(tmp_path, make_trace):
    path = tmp_path / "t.jsonl"
    path.write_text(f"{format_json(make_trace())}\n\n{{}}\nnonsense\n")
    with pytest.raises(InvalidRecord) as caught:
        load_jsonl_file(Trace, path)
    assert [p.source.rpartition(":")[2] for p in caught.value.problems] == ["3", "3", "4"]


def test_every_record_of_the_public_data_set_is_what_is_read_after_writing_it(public_data):
    lines = [line for file in public_data.glob("workloads/**/*.jsonl") for line in file.read_bytes().splitlines()]
    assert len(lines) > 100
    for line in lines:
        trace = parse_json(line, Trace)
        assert json.loads(format_json(trace)) == json.loads(line)
    for file in public_data.glob("definitions/**/*.json"):
        definition = load_json_file(Definition, file)
        assert parse_json(format_json(definition, indent=2), Definition) == definition
