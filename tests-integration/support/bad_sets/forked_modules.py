"""Forked modules: processes of ``python -m fib_...`` start as forks of this one, which has imported torch already.

The judge and the fork server of a benchmark import torch for two seconds each, as often as a case runs them. Their
main programs, arguments, environments and descriptors are unchanged.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import subprocess
import sys
import traceback
from typing import Any


class ForkingPopen(subprocess.Popen[Any]):
    """`subprocess.Popen` that forks instead of starting a Python with one of our modules."""

    def _execute_child(self, args: Any, *more: Any) -> None:
        words = [os.fspath(word) for word in args] if isinstance(args, list | tuple) else []
        if words[:2] != [sys.executable, "-m"] or not words[2].startswith("fib_"):
            super()._execute_child(args, *more)  # type: ignore[misc]
            return
        (_, _, close_fds, pass_fds, cwd, env, _, _, _, *pipes, _, _, _, _, _, is_new_session, _) = more
        p2cread, _, _, c2pwrite, _, errwrite = pipes
        pid = os.fork()
        if pid == 0:
            _become(words, (p2cread, c2pwrite, errwrite), pass_fds, cwd, env, is_new_session=is_new_session)
        self.pid, self._child_created = pid, True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        assert close_fds


def _become(
    words: list[str], streams: tuple[int, int, int], pass_fds: Any, cwd: Any, env: Any, *, is_new_session: bool
) -> None:
    code = 1
    try:
        if is_new_session:
            os.setsid()
        for number, descriptor in enumerate(streams):
            if descriptor != -1:
                os.dup2(descriptor, number)
        kept = {0, 1, 2, *pass_fds}
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor not in kept:
                with contextlib.suppress(OSError):  # the descriptor of the listing itself
                    os.close(descriptor)
        for descriptor in pass_fds:
            os.set_inheritable(descriptor, True)
        if cwd is not None:
            os.chdir(cwd)
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        sys.argv = words[2:]
        sys.modules.pop(words[2], None)  # it runs again, as the main module
        runpy.run_module(words[2], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - the border of a process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


_ORIGINAL = subprocess.Popen


def install() -> None:
    """Replace `subprocess.Popen` in this process and its forks."""
    subprocess.Popen = ForkingPopen  # type: ignore[misc]


def uninstall() -> None:
    """Restore `subprocess.Popen`."""
    subprocess.Popen = _ORIGINAL  # type: ignore[misc]
