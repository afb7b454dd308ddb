import pytest
from workshop.checkout import Checkout
from workshop.errors import Usage
from workshop.process import Console
from workshop.wheels import check_built_wheel, with_siblings


def names(checkout, name):
    (package,) = checkout.named([name])
    return {found.name for found in with_siblings(package, checkout.packages)}


def test_a_wheel_is_installed_with_the_siblings_it_declares_and_theirs(checkout):
    assert names(checkout, "fib-top") == {"fib-top", "fib-middle", "fib-low"}
    assert names(checkout, "fib-low") == {"fib-low"}


def test_a_sibling_that_is_not_declared_is_not_installed(checkout):
    assert "fib-other" not in names(checkout, "fib-top")


def test_a_sibling_that_only_the_tests_need_is_installed_for_them(checkout):
    manifest = checkout.root / "packages/fib-other/pyproject.toml"
    manifest.write_text(f'{manifest.read_text()}\n[dependency-groups]\ntest = ["fib-middle>=0.1"]\n')
    assert names(Checkout(checkout.root), "fib-other") == {"fib-other", "fib-middle", "fib-low"}


def test_a_wheel_that_was_not_built_is_an_error_that_says_how_to_build_it(checkout, tmp_path):
    (package,) = checkout.named(["low"])
    with pytest.raises(Usage, match=r"no fib_low-0.1.0-py3-none-any.whl in .* release fib-low"):
        check_built_wheel(checkout, Console(), package, tmp_path, {})
