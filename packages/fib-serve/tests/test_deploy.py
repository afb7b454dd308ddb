import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fib_serve.cli.main import main

DEPLOY = Path(__file__).parent.parent / "deploy"
pytestmark = pytest.mark.skipif(not DEPLOY.is_dir(), reason="needs the repository")


def test_the_systemd_unit_is_valid(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / "fib-serve.service"
    text = (DEPLOY / "fib-serve.service").read_text()
    unit.write_text(text.replace("/opt/fib-serve/bin/fib-serve", str(shutil.which("true"))))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_container_file_has_no_findings_of_hadolint():
    program = shutil.which("hadolint", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if program is None:
        pytest.skip("needs hadolint")
    done = subprocess.run([program, str(DEPLOY / "Containerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_commands_of_the_unit_and_the_container_exist():
    for line in (DEPLOY / "fib-serve.service").read_text().splitlines():
        if line.startswith("Exec"):
            words = line.split()[1:]
            with pytest.raises(SystemExit) as end:
                main([*words, "--help"])
            assert end.value.code == 0
