"""BuildError names solution, builder, problem and log; it can be pickled."""

import copy
import pickle

import attrs
import pytest
from fib_compile import BuildError, InvalidDevice


def test_build_error_shows_everything_it_holds():
    error = BuildError("mine", "tvm_ffi", "does not compile", ("k.cpp:3: error: x",), "c++ -c k.cpp", 1, "/logs/k.log")
    assert str(error) == (
        "solution 'mine' (tvm_ffi): does not compile\n"
        "  k.cpp:3: error: x\n"
        "  command (exit code 1): c++ -c k.cpp\n"
        "  whole log: /logs/k.log"
    )


@pytest.mark.parametrize("error", [BuildError("s", "b", "p", ("l",), "c", 1, "log"), InvalidDevice("gpu")])
def test_errors_cross_process_borders(error):
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert attrs.asdict(twin) == attrs.asdict(error)
