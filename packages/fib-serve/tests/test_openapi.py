"""Requests that the OpenAPI document allows, and others, made by schemathesis: no answer may be a failure."""

import importlib.util

import hypothesis
import pytest
from fib_serve.submissions import reject
from fib_serve.users import Role
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from .samples import bearer, plain_solution

if importlib.util.find_spec("schemathesis") is None:
    pytest.skip("needs schemathesis", allow_module_level=True)

import schemathesis

pytestmark = pytest.mark.slow
EXAMPLES = 25
KNOWN = {400, 401, 403, 404, 405, 409, 413, 415, 422, 429, 503}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_request_makes_the_service_fail(client, address, database, token, method):
    admin = bearer(token("root", Role.MAINTAINER))
    made = client.post("/v1/submissions", json={"solution": plain_solution()}, headers=admin).json()["id"]
    with database.write() as connection:
        reject(connection, made, "so that no request waits")
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    failures = []
    for operation in (found.ok() for found in schema.get_all_operations()):
        if operation.method.upper() != method or operation.path == "/shutdown":
            continue

        @hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            phases=[Phase.generate],
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(), uses_real_id=st.booleans())
        def ask(case, uses_real_id):
            if uses_real_id and "identifier" in (case.path_parameters or {}):
                case.path_parameters["identifier"] = made
            answer = case.call(headers={**(case.headers or {}), **admin})
            is_good = answer.status_code < 400 or answer.status_code in KNOWN
            content_type = (answer.headers.get("content-type") or [""])[0]
            if not is_good or (answer.status_code >= 400 and content_type != "application/problem+json"):
                failures.append(f"{case.method} {case.formatted_path}: {answer.status_code} {answer.text[:200]}")

        ask()
    assert failures == []
