import pytest

from . import VERSIONS

one_version = pytest.mark.parametrize("version", VERSIONS[-1:], indirect=True)
"""For a test of behaviour that does not depend on the signatures of a version."""
