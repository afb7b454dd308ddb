import os
import sys

import pytest
from workshop.errors import Missing, StepFailed
from workshop.process import Console, explain_pip_failure, record, run_foreground, run_logged, tail


def python(source):
    return [sys.executable, "-c", source]


def test_a_step_prints_one_line_with_its_time(capsys):
    ticks = iter([10.0, 12.5])
    with Console(clock=lambda: next(ticks)).step("installing"):
        pass
    assert capsys.readouterr().out == "  installing ... 2.5 s\n"


def test_a_failed_step_says_so_and_lets_the_error_through(capsys):
    ticks = iter([0.0, 1.0])
    with pytest.raises(ValueError, match="bad"), Console(clock=lambda: next(ticks)).step("installing"):
        raise ValueError("bad")
    assert capsys.readouterr().out == "  installing ... failed after 1.0 s\n"


def test_the_output_of_a_quiet_command_is_kept(tmp_path):
    log = tmp_path / "logs" / "a.log"
    code = record(
        python("import sys; print('out'); sys.stderr.write('err'); sys.exit(3)"), log=log, cwd=tmp_path, env={}
    )
    assert code == 3
    assert set(log.read_text().split()) == {"out", "err"}


def test_a_failed_command_shows_the_end_of_its_output_and_where_the_rest_is(tmp_path):
    log = tmp_path / "a.log"
    source = "print('\\n'.join(map(str, range(100)))); raise SystemExit(1)"
    with pytest.raises(StepFailed) as caught:
        run_logged("building", python(source), log=log, cwd=tmp_path, env=os.environ)
    text = str(caught.value)
    assert text.startswith("building failed with exit code 1")
    assert "  | 99\n" in text
    assert "  | 1\n" not in text
    assert text.endswith(f"log: {log}")


def test_a_foreground_command_gives_its_exit_code(tmp_path):
    assert run_foreground(python("raise SystemExit(4)"), cwd=tmp_path, env=os.environ) == 4


@pytest.mark.parametrize(
    ("output", "what"),
    [
        ("... Temporary failure in name resolution ...", "the network is missing"),
        ("NewConnectionError('<...>: Failed to establish a new connection')", "the network is missing"),
        (
            "ERROR: Could not find a version that satisfies the requirement hatch==1.18.2 (from versions: none)\n"
            "ERROR: No matching distribution found for hatch==1.18.2",
            "pip's index offers no version of hatch==1.18.2",
        ),
    ],
)
def test_pips_network_failures_are_explained(tmp_path, output, what):
    found = explain_pip_failure(output, tmp_path / "pip.log")
    assert isinstance(found, Missing)
    assert what in str(found)
    assert "pip config list" in str(found)
    assert str(tmp_path / "pip.log") in str(found)


def test_other_failures_are_not_blamed_on_the_network(tmp_path):
    refused = "(from versions: 1.0)\nERROR: No matching distribution found for hatch==99"
    assert explain_pip_failure(refused, tmp_path) is None
    assert explain_pip_failure("error: subprocess-exited-with-error", tmp_path) is None


def test_the_tail_skips_empty_lines():
    assert tail("a\n\nb\n\n\nc\n", 2) == "b\nc"
