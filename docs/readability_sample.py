"""Random sample of functions and error messages, to be rated by a reader who is new to the project.

`python docs/readability_sample.py --seed 20 > sample.md` prints 60 functions and 20 error messages.
Sources of solutions (exploits, demo kernels) are data and are left out. Results are in docs/readability.md.
"""

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

DATA_FOLDERS = {"exploits", "honest", "twins", "references", "solutions"}


def parsed_modules(root: Path) -> Iterator[tuple[Path, ast.Module]]:
    """All modules of all packages, in a fixed order."""
    for path in sorted(root.glob("packages/*/src/**/*.py")):
        in_demo = path.parent.parent.name == "demo"
        if DATA_FOLDERS.isdisjoint(path.parts) and not in_demo:
            yield path, ast.parse(path.read_text("utf-8"))


def functions(path: Path, module: ast.Module) -> Iterator[tuple[str, str]]:
    """Title and source of each function of at least three statements."""
    source = path.read_text("utf-8")
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(node.body) >= 3:
            yield f"{path.name}:{node.lineno} {node.name}", ast.get_source_segment(source, node) or ""


def messages(path: Path, module: ast.Module) -> Iterator[tuple[str, str]]:
    """Title and source of each `raise` whose exception is made with a text."""
    source = path.read_text("utf-8")
    for node in ast.walk(module):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            text = ast.get_source_segment(source, node) or ""
            if '"' in text:
                yield f"{path.name}:{node.lineno}", text


def main() -> None:
    """Print the sample as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1], help="a checkout")
    parser.add_argument("--seed", type=int, default=20)
    options = parser.parse_args()
    modules = list(parsed_modules(options.root))
    draw = random.Random(options.seed)
    for title, find, count in (("Functions", functions, 60), ("Error messages", messages, 20)):
        print(f"# {title}\n")
        found = [item for path, module in modules for item in find(path, module)]
        for name, source in draw.sample(found, count):
            print(f"## {name}\n\n```python\n{source}\n```\n")


if __name__ == "__main__":
    main()
