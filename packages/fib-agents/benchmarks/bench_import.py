"""Time of importing the package, and of importing its command and all tools, in fresh processes.

usage: bench_import.py [RUNS]: prints medians in ms, and whether torch was imported.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

IMPORTS = ("fib_agents", "fib_agents, fib_agents.cli, fib_agents.toolbox, fib_agents.triage")
CODE = """
import time
begin = time.perf_counter()
import {}
print(1e3 * (time.perf_counter() - begin), "torch" in sys.modules)
"""


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    print("| import | median, ms | longest, ms | torch |\n| --- | --- | --- | --- |")
    for names in IMPORTS:
        command = [sys.executable, "-c", f"import sys\n{CODE.format(names)}"]
        ended = [
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(runs)
        ]
        taken = [float(ms) for ms, _ in ended]
        torch = "yes" if any(has_torch == "True" for _, has_torch in ended) else "no"
        print(f"| {names} | {statistics.median(taken):.0f} | {max(taken):.0f} | {torch} |")


if __name__ == "__main__":
    main()
