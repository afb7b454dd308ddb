"""The documentation site, and the pictures of the README."""

from workshop.checkout import Checkout
from workshop.environment import Environment
from workshop.workbench import Workbench, verb_parser


def docs_command(checkout: Checkout, environment: Environment, builder: str = "html") -> list[str]:
    """Sphinx on `docs/`; a warning is an error, a reference that leads nowhere is a warning."""
    out = checkout.work / "docs"
    strict = ["-n", "-W", "--keep-going", "-q"]
    folders = ["-d", str(out / "doctrees"), str(checkout.root / "docs"), str(out / builder)]
    return [environment.python, "-m", "sphinx", *strict, "-b", builder, *folders]


def docs(workbench: Workbench, arguments: list[str]) -> int:
    """Build the documentation site; `--check-links` also asks other sites whether links to them work."""
    parser = verb_parser("docs", docs)
    parser.add_argument("--check-links", action="store_true", help="links to other sites too, which needs a network")
    builders = ["html", "linkcheck"] if parser.parse_args(arguments).check_links else ["html"]
    environment = workbench.environment()
    commands = [docs_command(workbench.checkout, environment, builder) for builder in builders]
    code = workbench.foreground(commands, environment, workbench.checkout.variables())
    if code == 0:
        workbench.console.say(f"built: {workbench.checkout.work / 'docs' / 'html' / 'index.html'}")
    return code


def pictures(workbench: Workbench, arguments: list[str]) -> int:
    """Make the pictures of the README from what `demo` has measured; needs an installed Chromium."""
    environment = workbench.environment()
    command = [environment.python, str(workbench.checkout.root / "docs" / "make_pictures.py"), *arguments]
    return workbench.foreground([command], environment, workbench.checkout.variables())
