import subprocess
import sys

from workshop.environment import Environment, hatch_variables, locked, make_venv, pins
from workshop.machine import MACHINE, Host
from workshop.process import Console


def test_an_activated_environment_comes_first_on_the_path(tmp_path):
    environment = Environment(tmp_path / ".venv")
    variables = environment.variables({"PATH": "/bin", "PYTHONHOME": "/elsewhere", "LANG": "C"})
    assert variables["PATH"] == f"{tmp_path}/.venv/bin:/bin"
    assert variables["VIRTUAL_ENV"] == str(environment.folder)
    assert "PYTHONHOME" not in variables
    assert variables["LANG"] == "C"


def test_hatch_keeps_its_files_in_the_checkout_and_the_readers_settings_out(checkout):
    base = {"HATCH_ENV_TYPE_VIRTUAL_PATH": "/elsewhere", "PIP_FIND_LINKS": "/wheels"}
    variables = hatch_variables(checkout, Host("/usr/bin/python3"), base)
    assert "HATCH_ENV_TYPE_VIRTUAL_PATH" not in variables
    assert variables["HATCH_PYTHON"] == "/usr/bin/python3"
    assert variables["HATCH_DATA_DIR"].startswith(str(checkout.work))
    assert variables["PIP_FIND_LINKS"] == "/wheels"


def test_the_pin_is_a_uri_without_spaces_and_falls_away_beside_a_machines_own_torch(checkout):
    (pin,) = pins(checkout, Host("python"))
    assert pin.startswith("file://")
    assert " " not in pin
    assert pins(checkout, Host("python", MACHINE, "2.11.0")) == []


def test_an_environment_beside_a_machines_torch_sees_the_folder_that_holds_it(checkout, tmp_path):
    """A torch in a virtual environment stays importable from an environment that is made from its base."""
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "marker_of_outer.py").touch()
    base = getattr(sys, "_base_executable", sys.executable)
    folder = checkout.work / "venv"
    make_venv(checkout, folder, Host(base, MACHINE, "2.11.0", str(tmp_path / "outer")))
    subprocess.run([Environment(folder).python, "-c", "import marker_of_outer"], check=True)
    assert "include-system-site-packages = true" in (folder / "pyvenv.cfg").read_text()


def test_the_lock_can_be_taken_again_after_it_was_released(checkout):
    for _ in range(2):
        with locked(checkout, Console()):
            assert (checkout.work / "lock").exists()
