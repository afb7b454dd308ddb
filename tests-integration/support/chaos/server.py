"""A server loop: ``python server.py REQUESTS_PER_SECOND SECONDS SEED [ENVIRONMENT|CALL DATASET]``.

It prints a line when it is ready, and begins when it reads one. It answers requests, checks each answer, and prints one
JSON line when it ends: requests, wrong answers, calls that a solution served (where counted), the longest request in
milliseconds. SIGTERM makes it leave with exit code 3, the end of its time with 5. Without a data set it never imports
fib_apply: that is the server that the routed one is compared with.
"""

import json
import random
import signal
import sys
import time

import torch

NAMES = ("workspace", "compiled", "never_compiles", "aborts", "leaves", "loads_slowly", "raises", "prints")
RECORDED, OTHERS = (1, 2, 3, 8, 64), (4, 5, 100, 257)
WIDTH = 64
TERMINATED, FINISHED = 3, 5
_CLOCK_JUMPS = (-86_400.0, 3_600.0, 30 * 86_400.0)


def plain(x):
    return 2 * x + 1


def routed(mode, dataset):
    """The functions by name, routed as an engine that is only configured does it, or one that calls."""
    import fib_apply

    if mode == "call":
        config = fib_apply.ApplyConfig(aot_ratio=0.0, on_error="fallback", shadow_ratio=0.05)
        fib_apply.enable_apply(dataset, config, stats=True)
    return {name: fib_apply.apply(name)(lambda x: 2 * x + 1) for name in NAMES}


def hits():
    """Number of calls that solutions served; 0 if no runtime counts them."""
    runtime = sys.modules["fib_apply"].get_runtime() if "fib_apply" in sys.modules else None
    counted = {} if runtime is None else runtime.stats()
    return sum(sum(of_definition.hits.values()) for of_definition in counted.values())


def jumped(seconds):
    """The wall clock, after it was set forward by so many seconds."""
    real_time = time.time
    return lambda: real_time() + seconds


def leave(number, frame):
    sys.exit(TERMINATED)


def serve(functions, rate, seconds, seed):
    """Answer requests until the time is over; the result is printed however the loop ends."""
    chance = random.Random(seed)
    begin = time.monotonic()
    requests = wrong = 0
    longest = 0.0
    try:
        while time.monotonic() < begin + seconds:
            if chance.random() < 0.002:
                time.time = jumped(chance.choice(_CLOCK_JUMPS))
            name, rows = chance.choice(NAMES), chance.choice(RECORDED if chance.random() < 0.8 else OTHERS)
            x = torch.full((rows, WIDTH), float(chance.randrange(1000)))
            start = time.monotonic()
            y = functions[name](x)
            taken = time.monotonic() - start
            requests += 1
            wrong += not torch.equal(y, plain(x))
            longest = max(longest, taken)
            time.sleep(1 / rate)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        result = {"requests": requests, "wrong": wrong, "hits": hits(), "longest_ms": longest * 1e3}
        print(json.dumps(result), flush=True)


def main(rate, seconds, seed, mode="", dataset=""):
    signal.signal(signal.SIGTERM, leave)
    torch.set_num_threads(1)
    functions = routed(mode, dataset) if mode else dict.fromkeys(NAMES, plain)
    print("ready", flush=True)
    sys.stdin.readline()
    serve(functions, float(rate), float(seconds), int(seed))
    return FINISHED


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
