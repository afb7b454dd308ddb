"""The data model of FIB and its on-disk store. Importing this imports neither torch nor numpy."""

from ._framing import framed
from .codec import (
    append_jsonl_file,
    format_json,
    load_json_file,
    load_jsonl_file,
    parse_json,
    save_json_file,
    save_jsonl_file,
    to_plain,
)
from .constraints import constraint_names, evaluate_constraint, parse_constraint
from .definition import AxisConst, AxisSpec, AxisVar, Definition, DType, TensorSpec
from .environment import get_fib_cache_path, get_fib_dataset_path
from .errors import (
    AxisError,
    ConstraintError,
    DataSetNotFound,
    DataWarning,
    DuplicateName,
    FibError,
    InvalidField,
    InvalidRecord,
    NoRoot,
    Problem,
    UnknownName,
)
from .solution import BuildSpec, Solution, SourceFile, SupportedBindings, SupportedLanguages
from .trace import Correctness, Environment, Evaluation, EvaluationStatus, Performance, Trace
from .trace_set import TraceSet
from .workload import InputSpec, RandomInput, SafetensorsInput, ScalarInput, Workload

__version__ = "0.1.0"
