"""Stand-ins for FlashInfer on the CPU: packages with its recorded signatures that compute in torch."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from .signatures import HERE, WRAPPERS

VERSIONS = tuple(sorted(path.stem for path in HERE.glob("*.json")))
_ALIASES = {"flashinfer.gemm": "flashinfer.gemm.gemm_base", "flashinfer.fused_moe": "flashinfer.fused_moe.core"}
_METHODS = {"__init__": "self.begin(locals())", "plan": "self.keep(locals())", "run": "return self.attend(locals())"}


def write(folder: Path, version: str) -> Path:
    """Write a package ``flashinfer`` into a folder, which is to be put on ``sys.path``.

    Args:
        folder: Where to.
        version: Whose signatures it has.
    """
    signatures = json.loads((HERE / f"{version}.json").read_text())["signatures"]
    modules: dict[str, list[str]] = defaultdict(list)
    for path, parameters in signatures.items():
        module, _, name = path.rpartition(".")
        if module not in WRAPPERS:
            modules[module].append(f"def {name}({parameters}):\n    return behaviour.{name}(locals())\n")
    for path, methods in WRAPPERS.items():
        module, _, name = path.rpartition(".")
        modules[module].append(_wrapper(name, {m: signatures[f"{path}.{m}"] for m in ("__init__", *methods)}))
    return _write_modules(folder, version, modules)


def _wrapper(name: str, signatures: dict[str, str]) -> str:
    lines = [f"class {name}(behaviour.{name}):"]
    for method, parameters in signatures.items():
        lines += [
            f"    def {method}({parameters}):",
            f"        {_METHODS.get(method) or _deprecated(method, parameters)}",
        ]
        if method == "plan":
            lines.append("    begin_forward = plan")
        if method == "run":
            lines.append("    run_return_lse = functools.partialmethod(run, return_lse=True)")
    return "\n".join(lines) + "\n"


def _deprecated(method: str, parameters: str) -> str:
    positional = parameters.split(", ")[1 : parameters.split(", ").index("v") + 1 if ", v," in parameters else 3]
    arguments = "locals()" if method == "forward" else "{**locals(), 'return_lse': True}"
    return f"return behaviour.Wrapper.forward(self, {arguments}, {', '.join(positional)})"


def _write_modules(folder: Path, version: str, modules: dict[str, list[str]]) -> Path:
    root = folder / "flashinfer"
    head = "import functools\nimport torch\nfrom flashinfer_stand_ins import behaviour\n\nOBJECT = object()\n\n\n"
    for module, parts in modules.items():
        place = folder / (module.replace(".", "/") + ".py")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(head + "\n\n".join(parts))
    for package, module in _ALIASES.items():
        (folder / package.replace(".", "/") / "__init__.py").write_text(f"from {module} import *\n")
    metadata = folder / f"flashinfer_python-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flashinfer-python\nVersion: {version}\n")
    imports = "".join(f"from {module} import *\n" for module in modules)
    (root / "__init__.py").write_text(f"__version__ = {version!r}\n{imports}")
    return folder
