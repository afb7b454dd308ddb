import json

import pytest
from workshop.errors import Usage
from workshop.gate import objections, parse_needs
from workshop.process import Console
from workshop.verbs import Workbench, gate


def needs(packages='["fib-low"]', **results):
    jobs = {name: {"result": result, "outputs": {}} for name, result in results.items()}
    return {"affected": {"result": "success", "outputs": {"packages": packages}}} | jobs


def test_the_gate_opens_where_every_job_succeeded():
    assert objections(needs(lint="success", wheels="success")) == []


@pytest.mark.parametrize("result", ["failure", "cancelled", "skipped"])
def test_any_other_result_keeps_it_shut(result):
    assert objections(needs(lint="success", wheels=result)) == [f"wheels: {result}"]


def test_jobs_may_be_skipped_where_no_package_is_affected():
    assert objections(needs("[]", lint="success", wheels="skipped")) == []
    assert objections(needs("[]", lint="failure", wheels="skipped")) == ["lint: failure"]


def test_a_planner_that_failed_excuses_nobody():
    failed = needs(wheels="skipped") | {"affected": {"result": "failure", "outputs": {}}}
    assert set(objections(failed)) == {"affected: failure", "wheels: skipped"}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"a": 1}', '{"a": {"result": null}}'])
def test_needs_that_say_nothing_do_not_open_it(text):
    with pytest.raises(Usage, match="the needs of the gate"):
        parse_needs(text)


def test_the_verb_ends_with_the_answer(checkout, capsys):
    workbench = Workbench(checkout, Console())
    assert gate(workbench, [json.dumps(needs(lint="success"))]) == 0
    assert gate(workbench, [json.dumps(needs(lint="failure"))]) == 1
    assert "in the way: lint: failure" in capsys.readouterr().out
