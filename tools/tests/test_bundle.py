from workshop.bundle import LIST, PLATFORMS, download_command, parse_list
from workshop.checkout import requirement_name


def test_the_list_keeps_requirements_and_what_is_present_apart():
    wanted, present = parse_list("# a note\n# present: torch Typing_Extensions\nattrs>=23  # why\n\nclick\n")
    assert wanted == ("attrs>=23", "click")
    assert present == {"torch", "typing-extensions"}


def test_every_declared_dependency_is_carried_or_present_on_the_machine(repository):
    wanted, present = parse_list((repository.root / LIST).read_text())
    available = {requirement_name(requirement) for requirement in wanted} | present
    own = {package.name for package in repository.packages}
    for package in repository.packages:
        needed = {requirement_name(text) for text in (*package.requirements, *package.test_requirements)}
        assert needed - own <= available, f"{package.name}: add what is missing to {LIST}"


def test_wheels_are_downloaded_for_the_other_python_and_all_its_platforms(tmp_path):
    command = download_command("python", "3.12", ("attrs",), tmp_path / "a folder")
    assert command[-3:] == ["--dest", str(tmp_path / "a folder"), "attrs"]
    assert command[command.index("--python-version") + 1] == "3.12"
    assert command.count("--platform") == len(PLATFORMS)
    assert "--no-deps" in command
