"""The cost of importing the package."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_package_its_command_and_its_triage_imports_no_torch() -> None:
    code = (
        "import sys, fib_agents, fib_agents.cli, fib_agents.triage, fib_agents.sandboxed.confine\n"
        "fib_agents.Toolbox, fib_agents.get_all_tool_schemas()\n"
        "print(sorted({'torch', 'numpy', 'mcp', 'triton'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
