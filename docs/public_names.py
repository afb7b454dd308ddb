"""Completeness of the API reference. A name in `__all__` of a package that it does not document is a warning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

MODULES = (
    "fib_schema",
    "fib_schema.signing",
    "fib_compile",
    "fib_bench",
    "fib_bench.evaluators",
    "fib_bench.timing",
    "fib_bench.report",
    "fib_apply",
    "fib_tracer",
    "fib_integrations",
    "fib_agents",
    "fib_serve",
)
_LOG = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handlers; called by Sphinx."""
    app.connect("builder-inited", _import_lazy_names)
    app.connect("env-check-consistency", _report_missing)
    return {"parallel_read_safe": True}


def _import_lazy_names(app: Sphinx) -> None:
    """Import all public names: autodoc does not list names that are imported on first use."""
    del app
    for place in MODULES:
        module = import_module(place)
        for name in module.__all__:
            setattr(module, name, getattr(module, name))


def _report_missing(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of missing names; constants may be documented under the module that defines them."""
    del app
    objects = env.domains.python_domain.objects
    documented = {(place.split(".")[0], place.split(".")[-1]) for place in objects}
    for place in MODULES:
        module = import_module(place)
        for name in module.__all__:
            elsewhere = f"{getattr(getattr(module, name), '__module__', None)}.{name}"  # a name of two packages
            if (place.split(".")[0], name) not in documented and elsewhere not in objects and name != "__version__":
                _LOG.warning("%s.%s is public, and not in the API reference (has it a docstring?)", place, name)
