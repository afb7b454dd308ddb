"""Tests of the outside checks of a process: filters, modified code, memory."""

import hashlib
import os
import re
import subprocess
import sys
import textwrap

import pytest
from fib_bench.worker.outside_checks import (
    NotPermitted,
    code_by_page_map,
    code_by_smaps,
    memory_digest,
    modified_text,
    open_memory_files,
    seccomp_filters,
)

from .samples import in_a_child

PRELUDE = """
import ctypes, os, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
def address_of(function):
    return ctypes.cast(function, ctypes.c_void_p).value
def tell(value=""):
    print(value, flush=True)
    return sys.stdin.readline().strip()
"""
MODIFIES = """
page = address_of(libc.getrandom) & ~4095
assert libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(4096), 7) == 0
ctypes.memset(page, ctypes.string_at(page, 1)[0], 1)
assert libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(4096), 5) == 0
"""
MODIFIES_THROUGH_A_FILE = """
address = address_of(libc.getrandom)
with open("/proc/self/mem", "r+b", buffering=0) as memory:
    os.pwrite(memory.fileno(), ctypes.string_at(address, 1), address)
"""


class Process:
    """A process that does something whenever it is told to, and then says so."""

    def __init__(self, code):
        self._popen = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._popen.pid
        self.said = self._line()

    def go_on(self):
        self._popen.stdin.write("\n")
        self._popen.stdin.flush()
        return self._line()

    def end(self):
        self._popen.kill()
        self._popen.communicate()

    def _line(self):
        return self._popen.stdout.readline().strip()


@pytest.fixture
def start():
    processes = []

    def run(code):
        processes.append(Process(code))
        return processes[-1]

    yield run
    for process in processes:
        process.end()


class TestProcesses:
    def test_one_that_has_ended_is_no_process(self, start):
        process = start("tell()")
        process.end()
        for read in (seccomp_filters, modified_text, open_memory_files):
            with pytest.raises(ProcessLookupError, match=f"process {process.pid} has ended"):
                read(process.pid)

    def test_a_zombie_does_not_pass_for_a_process_without_changed_code(self):
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        for read in (modified_text, code_by_smaps):
            with pytest.raises(ProcessLookupError, match=f"process {pid} has ended"):
                read(pid)
        os.waitpid(pid, 0)

    def test_a_seal_adds_a_filter_to_every_thread(self, start):
        process = start("""
            from fib_bench.sandbox.seccomp import seal_process
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            tell()
            tell(not seal_process())
        """)
        before = seccomp_filters(process.pid)
        if process.go_on() != "True":
            pytest.skip("processes cannot be sealed here")
        after = seccomp_filters(process.pid)
        assert len(after) == 2
        assert after == {thread: count + 1 for thread, count in before.items()}


class TestText:
    @pytest.mark.parametrize("change", [MODIFIES, MODIFIES_THROUGH_A_FILE], ids=["mprotect", "proc-self-mem"])
    def test_a_function_that_was_written_over_is_found(self, start, change):
        process = start(f"import torch\ntell()\n{change}\ntell()")
        assert modified_text(process.pid) == []
        process.go_on()
        (found,) = modified_text(process.pid)
        assert re.search(r"libc.* r-xp: 4 KiB differ from the file$", found)
        assert code_by_page_map(process.pid) == code_by_smaps(process.pid)

    def test_pages_of_a_file_that_others_write_are_no_copies(self, start, tmp_path):
        """A shared mapping shows what is written to its file; it is listed because it can be written."""
        process = start(f"""
            import mmap
            with open("{tmp_path}/shared", "w+b") as file:
                file.truncate(8192)
                shared = mmap.mmap(file.fileno(), 8192, mmap.MAP_SHARED, 7)
                shared[:] = b"x" * 8192
            tell()
        """)
        ((one, changed),) = [each for each in code_by_page_map(process.pid).items() if "/shared at " in each[0]]
        assert changed == 0
        assert [line for line in modified_text(process.pid) if "/shared" in line] == [f"{one}: it can be written"]

    def test_code_that_can_be_written_is_found(self, start):
        process = start("""
            page = address_of(libc.getrandom) & ~4095
            assert libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(4096), 7) == 0
            tell()
        """)
        (found,) = modified_text(process.pid)
        assert found.endswith("rwxp: it can be written")

    def test_a_library_that_was_just_written_is_not_modified(self, start, tmp_path):
        """Its pages are dirty until the system has written them to the disk."""
        process = start(f"""
            import _ctypes, shutil
            copy = shutil.copy(_ctypes.__file__, "{tmp_path}/fresh.so")
            library = ctypes.CDLL(copy)
            tell()
        """)
        assert any("/fresh.so at " in one for one in code_by_page_map(process.pid))
        assert modified_text(process.pid) == []

    def test_descriptors_of_memory_are_found(self, start):
        process = start("tell()\nmemory = open('/proc/self/mem', 'r+b', buffering=0)\ntell(memory.fileno())")
        assert open_memory_files(process.pid) == []
        descriptor = process.go_on()
        assert open_memory_files(process.pid) == [f"descriptor {descriptor} is /proc/{process.pid}/mem"]


class TestMemory:
    def test_a_digest_is_of_the_bytes(self, start):
        process = start("""
            data = ctypes.create_string_buffer(b"ab" * 999_999)
            tell(ctypes.addressof(data))
            data[4000] = b"c"
            tell()
        """)
        content = b"ab" * 999_999
        assert memory_digest(process.pid, int(process.said), len(content)) == hashlib.sha256(content).hexdigest()
        place = int(process.said)
        process.go_on()
        content = content[:4000] + b"c" + content[4001:]
        assert memory_digest(process.pid, place, len(content)) == hashlib.sha256(content).hexdigest()

    def test_memory_that_is_not_there_is_refused(self, start):
        with pytest.raises(NotPermitted, match="cannot read the memory of process"):
            memory_digest(start("tell()").pid, 4096, 16)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become an ordinary user")
class TestRights:
    """The judge as an ordinary user, and a worker that it may not look into."""

    @pytest.mark.parametrize(
        ("read", "what"),
        [
            pytest.param(modified_text, "mappings", id="text"),
            pytest.param(open_memory_files, "descriptors", id="descriptors"),
            pytest.param(lambda pid: memory_digest(pid, 4096, 1), "memory", id="memory"),
        ],
    )
    def test_a_refusal_says_what_is_required(self, start, read, what):
        process = start("tell()")
        expected = f"cannot read the {what} of process {process.pid}: Permission denied; run the judge as the worker's"
        assert as_nobody(lambda: read(process.pid)).startswith(expected)


def as_nobody(read):
    """The result of a function for a user without rights, or the text of its error."""

    def read_it():
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        try:
            return read()
        except NotPermitted as error:
            return error

    return in_a_child(read_it)
