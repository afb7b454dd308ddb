import pytest
from workshop.checkout import Checkout
from workshop.errors import Usage
from workshop.lowest import describe, explain_absent, find_bounds


def bounds(checkout, name, *extras):
    checkout = Checkout(checkout.root)
    (package,) = checkout.named([name])
    return find_bounds(checkout, package, frozenset(extras))


def siblings(found):
    return {package.name for package in found.siblings}


@pytest.fixture
def checkout(checkout, add_package):
    """`fib-app` needs `fib-lib`, of which the checkout has 0.3.1, and `fib-base`, which is 0.1.0."""
    app = ["fib-lib[fast]>=0.3.1,<0.4", "fib-base>=0.1,<0.2", "attrs>=23.2", "torch>=2.6", "click>=8 ; os_name == 'nt'"]
    add_package("fib-app", *app)
    add_package("fib-base", "attrs>=24")
    add_package("fib-lib", "attrs>=23.10", "free")
    manifest = checkout.root / "packages/fib-lib/pyproject.toml"
    text = manifest.read_text().replace("0.1.0", "0.3.1")
    manifest.write_text(f'{text}\n[project.optional-dependencies]\nfast = ["numpy>=1.26"]\nslow = ["ray>=2"]\n')
    return checkout


def test_each_name_is_taken_to_the_oldest_version_that_satisfies_everybody(checkout):
    lines = bounds(checkout, "app").pinned()
    assert lines == ("attrs==24", "click==8 ; os_name == 'nt'", "numpy==1.26", "torch==2.6")


def test_siblings_come_from_the_checkout_where_it_has_the_very_version_that_is_declared(checkout):
    assert siblings(bounds(checkout, "app")) == {"fib-lib", "fib-base"}


def test_a_sibling_declared_in_an_older_version_is_left_to_the_index_with_all_that_it_needs(checkout):
    manifest = checkout.root / "packages/fib-app/pyproject.toml"
    manifest.write_text(manifest.read_text().replace(">=0.3.1", ">=0.3"))
    found = bounds(checkout, "app")
    assert siblings(found) == {"fib-base"}
    assert "fib-lib==0.3" in found.pinned()
    assert not any(line.startswith("numpy") for line in found.pinned())


def test_a_sibling_that_anybody_needs_as_it_is_comes_from_the_checkout_for_all(checkout):
    manifest = checkout.root / "packages/fib-app/pyproject.toml"
    manifest.write_text(manifest.read_text().replace(">=0.3.1", ">=0.3"))
    base = checkout.root / "packages/fib-base/pyproject.toml"
    base.write_text(base.read_text().replace("attrs>=24", "fib-lib>=0.3.1"))
    found = bounds(checkout, "app")
    assert siblings(found) == {"fib-lib", "fib-base"}
    assert not any(line.startswith("fib-") for line in found.pinned())


def test_a_sibling_that_has_not_reached_what_is_declared_is_an_error(checkout):
    manifest = checkout.root / "packages/fib-app/pyproject.toml"
    manifest.write_text(manifest.read_text().replace(">=0.3.1", ">=0.3.2"))
    with pytest.raises(Usage, match=r"fib-lib\[fast\]>=0.3.2,<0.4 is declared, and the checkout has fib-lib 0.3.1"):
        bounds(checkout, "app")


def test_an_extra_is_tried_where_it_is_asked_for(checkout):
    assert bounds(checkout, "lib").pinned() == ("attrs==23.10",)
    assert bounds(checkout, "lib", "slow").pinned() == ("attrs==23.10", "ray==2")
    with pytest.raises(Usage, match=r"fib-lib has no extra 'quick' \(there are: fast, slow\)"):
        bounds(checkout, "lib", "quick")


def test_what_is_held_elsewhere_is_left_out_and_said_aloud(checkout):
    held = {"torch": "2.13.0, which tools/constraints.txt holds"}
    found = bounds(checkout, "app")
    assert not any(line.startswith("torch") for line in found.pinned(held))
    text = describe(found, held)
    assert "  torch 2.6 is declared, NOT TESTED: this runs with 2.13.0, which tools/constraints.txt holds" in text
    assert "  free any version" in text
    assert "  fib-lib 0.3.1, from this checkout" in text


def test_a_lower_bound_that_is_no_version_is_explained_with_the_next_ones(checkout):
    output = (
        "ERROR: Could not find a version that satisfies the requirement attrs==24 (from versions: 1.0, 24.1rc1, 24.2)"
    )
    text = str(explain_absent(output, bounds(checkout, "app")))
    assert text.startswith("attrs 24 is declared as the oldest version that serves, and there is no such version.")
    assert "next: 24.2\n" in text


def test_other_failures_of_pip_are_not_blamed_on_a_bound(checkout):
    found = bounds(checkout, "app")
    assert explain_absent("ERROR: ResolutionImpossible", found) is None
    assert explain_absent("requirement pytest==99 (from versions: 1, 2)", found) is None


def test_every_package_of_this_repository_has_bounds_with_all_its_extras(repository):
    for package in repository.packages:
        found = find_bounds(repository, package, frozenset(package.extras))
        assert all(found.versions.values()), package.name
