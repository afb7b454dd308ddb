import pytest
from workshop.checkout import Checkout
from workshop.environment import Environment, is_current
from workshop.machine import MACHINE, Host
from workshop.stamps import environment_stamp, fingerprint, read_stamp, write_stamp

HOST = Host("/usr/bin/python3")


def stamp(checkout, host=HOST, version="3.11.7", hatch="hatch==1"):
    return environment_stamp(Checkout(checkout.root), host, version, hatch)


def append(path, text):
    path.write_text(path.read_text() + text)


def test_nothing_changed_means_the_same_stamp(checkout):
    assert stamp(checkout) == stamp(checkout)


@pytest.mark.parametrize(
    "changed",
    [
        {"version": "3.12.1"},
        {"hatch": "hatch==2"},
        {"host": Host("/opt/python")},
        {"host": Host("/usr/bin/python3", MACHINE, "2.11.0")},
    ],
)
def test_another_python_torch_or_hatch_makes_the_environment_anew(checkout, changed):
    assert stamp(checkout, **changed)["base"] != stamp(checkout)["base"]


def test_another_pin_makes_the_environment_anew(checkout):
    before = stamp(checkout)
    append(checkout.constraints, "triton==3.9.0\n")
    assert stamp(checkout)["base"] != before["base"]


@pytest.mark.parametrize(
    ("manifest", "addition"),
    [
        ("packages/fib-low/pyproject.toml", "\n[project.scripts]\nlow = 'low:main'\n"),
        ("packages/fib-low/pyproject.toml", "\n[build-system]\nrequires = ['hatchling']\n"),
        ("pyproject.toml", "\n[tool.hatch.envs.default.env-vars]\nA = '1'\n"),
    ],
)
def test_a_changed_manifest_brings_the_environment_up_to_date(checkout, manifest, addition):
    before = stamp(checkout)
    append(checkout.root / manifest, addition)
    after = stamp(checkout)
    assert after["manifests"] != before["manifests"]
    assert after["base"] == before["base"]


def test_the_settings_of_a_linter_install_nothing(checkout):
    before = stamp(checkout)
    append(checkout.root / "pyproject.toml", "\n[tool.mypy]\nstrict = true\n")
    assert stamp(checkout) == before


def test_a_new_package_brings_the_environment_up_to_date(checkout):
    before = stamp(checkout)
    folder = checkout.root / "packages" / "fib-new"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("[project]\nname = 'fib-new'\nversion = '0.1.0'\n")
    assert stamp(checkout)["manifests"] != before["manifests"]


def test_an_environment_is_current_once_its_interpreter_and_its_stamp_are_there(checkout):
    environment = Environment(checkout.root / ".venv")
    wanted = stamp(checkout)
    write_stamp(checkout.work / "venv.json", wanted)
    assert not is_current(checkout, environment, wanted)
    (environment.folder / "bin").mkdir(parents=True)
    (environment.folder / "bin" / "python").touch()
    assert is_current(checkout, environment, wanted)
    assert not is_current(checkout, environment, wanted | {"manifests": "other"})


def test_a_torn_stamp_is_no_stamp(tmp_path):
    (tmp_path / "stamp.json").write_text('{"base": "ab')
    assert read_stamp(tmp_path / "stamp.json") == {}


def test_fingerprints_keep_moved_borders_apart():
    assert fingerprint(["ab", "c"]) != fingerprint(["a", "bc"])
