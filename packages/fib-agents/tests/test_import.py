import subprocess
import sys

from fib_agents.cli import main


def test_importing_the_package_its_command_and_its_triage_imports_no_torch():
    code = (
        "import sys, fib_agents, fib_agents.cli, fib_agents.triage, fib_agents.sandboxed.confine\n"
        "fib_agents.Toolbox, fib_agents.get_all_tool_schemas()\n"
        "print(sorted({'torch', 'numpy', 'mcp', 'triton'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_without_the_extra_the_server_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.delitem(sys.modules, "fib_agents.mcp_server", raising=False)
    monkeypatch.delattr("fib_agents.mcp_server", raising=False)
    assert main(["mcp", ".", "--device", "cpu"]) == 2
    assert "pip install 'fib-agents[mcp]'" in capsys.readouterr().err
