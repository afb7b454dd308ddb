"""The table of honest solutions: what it covers, and that solutions compile and never wait for the device."""

from importlib.util import find_spec

import pytest
from ahead_compilation import AheadCase, children
from public_data_set import definition_names, needs_data_set
from solution_table import FOLDER, capturable_entry, entries_for, solution_table

pytestmark = needs_data_set
CASES = [
    AheadCase(entry.file, name, is_large)
    for name in definition_names()
    for entry in entries_for(name, device="cuda")
    if entry.is_capturable and entry.file.endswith(".py")
    for is_large in (False, True)
]


@pytest.fixture(scope="module")
def ahead(tmp_path_factory):
    if find_spec("triton") is None:
        pytest.skip("needs the extra 'triton'")
    yield from children(tmp_path_factory.mktemp("cache"))


def test_every_definition_has_a_solution_that_a_graph_can_capture():
    assert [name for name in definition_names() if capturable_entry(name) is None] == []


def test_every_file_has_an_entry_that_implements_a_definition():
    entries = {entry.file: entry for entry in solution_table()}
    assert set(entries) == {file.name for file in FOLDER.iterdir() if file.suffix in {".py", ".cu", ".cpp"}}
    assert len(entries) == len(solution_table())
    unused = [file for file, entry in entries.items() if not any(map(entry.implements, definition_names()))]
    assert unused == []


@pytest.mark.slow
def test_a_file_that_waits_for_the_device_is_found(tmp_path):
    """The check itself: ``gqa_paged_prefill_torch.py`` reads offsets on the host."""
    case = AheadCase("gqa_paged_prefill_torch.py", "gqa_paged_prefill_causal_h32_kv8_d128_ps1", False)
    for ahead in children(tmp_path):
        with pytest.raises(pytest.fail.Exception, match="DataDependent"):
            ahead(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_solution_compiles_and_never_waits(case, ahead):
    ahead(case)
