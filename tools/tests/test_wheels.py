from workshop.wheels import with_siblings


def names(checkout, name):
    (package,) = checkout.named([name])
    return {found.name for found in with_siblings(package, checkout.packages)}


def test_a_wheel_is_installed_with_the_siblings_it_declares_and_theirs(checkout):
    assert names(checkout, "fib-top") == {"fib-top", "fib-middle", "fib-low"}
    assert names(checkout, "fib-low") == {"fib-low"}


def test_a_sibling_that_is_not_declared_is_not_installed(checkout):
    assert "fib-other" not in names(checkout, "fib-top")
