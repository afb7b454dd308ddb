import pytest
from workshop.checkout import DATASET_VARIABLE, find_checkout, requirement_name
from workshop.errors import Missing, Usage


def test_packages_are_read_from_their_manifests(checkout):
    assert [package.name for package in checkout.packages] == ["fib-low", "fib-middle", "fib-other", "fib-top"]
    assert checkout.packages[0].wheel_name == "fib_low-0.1.0-py3-none-any.whl"


def test_a_folder_without_a_manifest_is_no_package(checkout):
    (checkout.root / "packages" / "leftover").mkdir()
    assert "leftover" not in [package.name for package in checkout.packages]


def test_a_package_is_named_with_or_without_its_prefix(checkout):
    assert checkout.named(["low"]) == checkout.named(["fib-low"])
    assert checkout.named([]) == checkout.packages


def test_an_unknown_package_is_an_error_that_lists_the_known_ones(checkout):
    with pytest.raises(Usage, match=r"no package 'lwo' \(there are: fib-low, fib-middle"):
        checkout.named(["lwo"])


def test_the_checkout_is_found_from_a_script_and_missed_outside_of_one(checkout, tmp_path):
    assert find_checkout(checkout.root / "tools" / "dev.py").root == checkout.root.resolve()
    with pytest.raises(Missing, match="the rest of the repository is missing"):
        find_checkout(tmp_path / "elsewhere" / "tools" / "dev.py")


def test_a_data_set_beside_the_checkout_is_named_for_the_tests(checkout, monkeypatch):
    monkeypatch.delenv(DATASET_VARIABLE, raising=False)
    assert DATASET_VARIABLE not in checkout.variables()
    beside = checkout.root.parent / "shared" / "flashinfer-trace"
    beside.mkdir(parents=True)
    assert checkout.variables()[DATASET_VARIABLE] == str(beside)
    monkeypatch.setenv(DATASET_VARIABLE, "elsewhere")
    assert checkout.variables()[DATASET_VARIABLE] == "elsewhere"


@pytest.mark.parametrize(
    ("requirement", "name"),
    [
        ("attrs", "attrs"),
        ("PyYAML>=6", "pyyaml"),
        ("Fib_Schema[blobs]>=0.1", "fib-schema"),
        ("triton ; platform_system == 'Linux'", "triton"),
    ],
)
def test_the_name_of_a_requirement_is_normalised(requirement, name):
    assert requirement_name(requirement) == name
