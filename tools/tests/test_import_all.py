import runpy
import sys
from pathlib import Path

import pytest

import_all = runpy.run_path(str(Path(__file__).with_name("import_all.py")))["import_all"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed distribution `some-package` with the extra `fast`, which needs `not-there`."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "some_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "__main__.py").write_text("1 / 0")
    (tmp_path / "some_package-1.dist-info").mkdir()
    metadata = "Metadata-Version: 2.4\nName: some-package\nVersion: 1\nRequires-Dist: not-there>=1; extra == 'fast'\n"
    (tmp_path / "some_package-1.dist-info/METADATA").write_text(metadata)
    yield folder
    for name in [name for name in sys.modules if name.startswith("some_package")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "text",
    [
        "import not_there",
        "try:\n    import not_there.part\nexcept ImportError as error:\n    raise ValueError from error",
    ],
)
def test_a_module_may_need_an_extra(package, text):
    (package / "fast.py").write_text(text)
    import_all("some-package", "some_package")


def test_a_dependency_that_is_not_declared_is_an_error(package):
    (package / "a.py").write_text("import undeclared")
    with pytest.raises(ModuleNotFoundError, match="undeclared"):
        import_all("some-package", "some_package")


def test_a_module_that_fails_otherwise_is_an_error(package):
    (package / "a.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        import_all("some-package", "some_package")
