"""Tests of SIGTERM: kept calls are stored, unless the program handles the signal in its own way."""

from .test_processes import run, start, values


def test_a_handler_of_the_program_stays(root):
    out = run(
        root,
        """
for handler in (signal.SIG_IGN, lambda *_: None):
    signal.signal(signal.SIGTERM, handler)
    with enable_tracing(sys.argv[1]):
        print(signal.getsignal(signal.SIGTERM) is handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
with enable_tracing(sys.argv[1]):
    signal.signal(signal.SIGTERM, handler)
print(signal.getsignal(signal.SIGTERM) is handler)
""",
    )
    assert out.split() == ["True"] * 3


def test_the_default_comes_back_when_tracing_ends(root):
    out = run(
        root,
        """
runtime = enable_tracing(sys.argv[1])
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
if os.fork() == 0:
    print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
    os._exit(0)
os.wait()
runtime.stop()
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
""",
        PYTHONUNBUFFERED="1",
    )
    assert out.split() == ["False", "True", "True"]


def test_a_signal_in_a_kept_call_loses_no_other(root):
    """It is raised under the policy's lock, which draining needs."""
    process = start(
        root,
        """
from fib_tracer.policies import KeepRandomK

class Interrupted(KeepRandomK):
    admitted = 0

    def admit(self, call):
        self.admitted += 1
        if self.admitted == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().admit(call)

enable_tracing(sys.argv[1], TracingConfig("dump_all", filter_policy=lambda: Interrupted(9, 0)))
for index in range(4):
    call(index)
""",
    )
    process.communicate(timeout=300)
    assert process.returncode == 143
    assert values(root) == [0, 1, 2]
