calls = 0


def run(x):
    global calls
    calls += 1
    print("call", calls, "on", tuple(x.shape))
    return x * 2
