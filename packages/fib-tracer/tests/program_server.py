"""Fork server for the programs of tests: torch is imported once, and each program runs in a fork.

A fork runs its program and then ends as any Python process does. `start` is used like `subprocess.Popen`.
"""

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading


class Program:
    """A running program, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, server, stdout, stderr):
        self._server = server
        self.stdout = stdout
        self._stderr = stderr
        self.pid = int(server.recv(64))
        self.returncode: int | None = None

    def send_signal(self, number):
        os.kill(self.pid, number)

    def communicate(self, timeout):
        """Wait for the end and return the rest of stdout, and stderr; after the timeout the program is killed."""
        timer = threading.Timer(timeout, os.kill, (self.pid, signal.SIGKILL))
        timer.start()
        stderr = []
        reader = threading.Thread(target=lambda: stderr.append(self._stderr.read()))
        reader.start()
        with self.stdout, self._stderr:
            out = self.stdout.read()
            reader.join()
        self.returncode = int(self._server.recv(64))
        timer.cancel()
        return out, stderr[0]


@functools.cache
def _server():
    """A connection to the server, which ends when the connection is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FIB_")}
    environment["FIB_APPLY_NATIVE"] = "0"  # compiling takes longer than the programs
    command = [sys.executable, __file__, str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
    theirs.close()
    atexit.register(process.wait)  # after the connection is closed: the last one runs first
    atexit.register(ours.close)
    return ours


def start(code, arguments, environment):
    """Start a program; one at a time may run.

    Args:
        code: Its source.
        arguments: ``sys.argv[1:]``.
        environment: Variables to set beside those of this process.
    """
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    request = {"code": code, "arguments": arguments, "environment": {**os.environ, **environment}}
    socket.send_fds(_server(), [json.dumps(request).encode()], [out_end, err_end])
    os.close(out_end)
    os.close(err_end)
    return Program(_server(), os.fdopen(out), os.fdopen(err))


def _next_request(connection):
    """Start forks until the connection is closed; in a fork, return the request that it is for."""
    while True:
        message, ends, _, _ = socket.recv_fds(connection, 1 << 20, 2)
        if not message:
            return None
        process = os.fork()
        if process == 0:
            connection.close()
            for number, end in enumerate(ends, start=1):
                os.dup2(end, number)
                os.close(end)
            return json.loads(message)
        for end in ends:
            os.close(end)
        connection.send(str(process).encode())
        _, status = os.waitpid(process, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    import fib_tracer.runtime  # noqa: F401 with torch

    if (mine := _next_request(socket.socket(fileno=int(sys.argv[1])))) is not None:
        os.environ.clear()
        os.environ.update(mine["environment"])
        sys.argv[1:] = mine["arguments"]
        exec(compile(mine["code"], "<program>", "exec"), {"__name__": "__main__"})
