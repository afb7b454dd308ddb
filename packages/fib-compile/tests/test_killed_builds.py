"""A build that is killed at any point leaves nothing that a later build loads."""

import json
import random
import subprocess
import sys

import torch
from compile_samples import ADD_ONE, fast_cpp
from fib_compile import TVMFFIBuilder
from fib_schema import format_json

X = torch.zeros(2, 4)

DRIVER = """
import json, os, shutil, signal, sys
from pathlib import Path

from fib_compile import BuilderRegistry, TVMFFIBuilder
from fib_compile.cache import read_entry
from fib_schema import Definition, Solution, parse_json

definition, solution, points, seed = sys.stdin.read().split("\\0")
pair = parse_json(definition, Definition), parse_json(solution, Solution)
builder = TVMFFIBuilder()
root = os.environ["FIB_CACHE_PATH"]


def build(killed_at=None):
    '''Build in a process of its own, which kills itself at its n-th access to the cache; returns the accesses.'''
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        accesses = 0

        def hook(event, args):
            nonlocal accesses
            if event == "subprocess.Popen" or any(root in str(arg) for arg in args):
                accesses += 1
                if accesses == killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        [outcome] = BuilderRegistry([builder]).build_many([pair], jobs=1)
        os.write(writer, str(accesses).encode())
        os._exit(outcome.error is not None)
    os.close(writer)
    _, status = os.waitpid(pid, 0)
    with open(reader) as pipe:
        accesses = pipe.read()
    if killed_at is None:
        assert status == 0, status
        return int(accesses)
    assert os.WIFSIGNALED(status), killed_at


total = build()
import random
numbers = random.Random(seed).sample(range(1, total), int(points))
for number in sorted(numbers):
    shutil.rmtree(root)
    build(killed_at=number)
    published = [path for path in builder.build_folder.glob("[!.]*/[!.]*/*.so")]
    assert all(read_entry(path.parent) for path in published), number
    build()
    assert len([path for path in builder.build_folder.glob("[!.]*/[!.]*/*.so") if read_entry(path.parent)]) == 1
print(json.dumps([total, numbers]))
"""


def test_a_build_killed_at_any_access_to_the_cache_is_repeated():
    points, seed = 2, random.randrange(2**32)
    solution = fast_cpp(1)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input="\0".join((format_json(ADD_ONE), format_json(solution), str(points), str(seed))),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}\n{done.stderr}"

    total, numbers = json.loads(done.stdout)
    assert total > len(numbers) == points
    assert torch.equal(TVMFFIBuilder().build(ADD_ONE, solution).call_value_returning(X), X + 1)
