"""Tests of the login through an OpenID Connect provider: a real one on loopback, honest and dishonest."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import attrs
import httpx
import pytest
from fib_serve.database import Database
from fib_serve.errors import InvalidSetting
from fib_serve.settings import OIDC_SECRET_VARIABLE, Settings
from fib_serve.users.accounts import Limits, change_user, list_users
from fib_serve.users.roles import Role

if importlib.util.find_spec("authlib") is None or importlib.util.find_spec("itsdangerous") is None:
    pytest.skip("needs the extra `oidc`", allow_module_level=True)

from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

PUBLIC = "http://127.0.0.1:8000"
CLIENT, SECRET = "fib", "secret-of-the-client"
HTML = {"Accept": "text/html"}
Provider = Callable[..., "LoopbackProvider"]


@attrs.define(eq=False)
class LoopbackProvider:
    """A provider that logs everybody in as one subject."""

    subject: str = "248289761001"
    name: str = "Alice Example"
    changes: dict[str, Any] = attrs.Factory(dict)
    """Claims of the token that differ from right ones."""
    key: Any = attrs.field(factory=lambda: RSAKey.generate_key(2048, {"kid": "1"}))
    signing_key: Any = None
    """Another key than the published one."""
    algorithm: str = "RS256"
    issuer: str = ""
    codes: dict[str, dict[str, str]] = attrs.Factory(dict)

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
            "response_types_supported": ["code"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
        }

    def authorize(self, asked: dict[str, str]) -> str:
        assert asked["client_id"] == CLIENT
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_hex(8)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def token(self, form: dict[str, str], authorization: str) -> dict[str, Any]:
        asked = self.codes.pop(form["code"])
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        assert challenge.decode() == asked["code_challenge"]
        assert form["redirect_uri"] == asked["redirect_uri"] == f"{PUBLIC}/login/oidc/callback"
        assert base64.b64decode(authorization.split()[1]).decode() == f"{CLIENT}:{SECRET}"
        now = int(time.time())
        claims = {"iss": self.issuer, "sub": self.subject, "aud": CLIENT, "iat": now, "exp": now + 60}
        claims |= {"nonce": asked["nonce"], "preferred_username": self.name, **self.changes}
        header = {"alg": self.algorithm, "kid": "1"}
        text = jwt.encode(header, claims, self.signing_key or self.key, algorithms=[self.algorithm])
        return {"access_token": "x", "token_type": "Bearer", "expires_in": 60, "id_token": text}


class _Handler(BaseHTTPRequestHandler):
    provider: LoopbackProvider

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/authorize":
            asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
            self.send_response(302)
            self.send_header("Location", self.provider.authorize(asked))
            self.end_headers()
        elif parts.path == "/jwks":
            self._answer({"keys": [self.provider.key.as_dict(private=False)]})
        else:
            self._answer(self.provider.metadata())

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in parse_qs(text).items()}
        try:
            self._answer(self.provider.token(form, self.headers["Authorization"] or ""))
        except (AssertionError, KeyError, IndexError):
            self._answer({"error": "invalid_grant"}, 400)

    def _answer(self, content: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def provider() -> Iterator[LoopbackProvider]:
    found = LoopbackProvider()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"provider": found}))
    found.issuer = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def browser(make_client: Callable[..., Any], provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(OIDC_SECRET_VARIABLE, SECRET)
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "")
    return make_client(oidc_issuer=provider.issuer, oidc_client_id=CLIENT, public_url=PUBLIC)


def log_in(browser: Any) -> Any:
    """Follow the redirects to the provider and back; returns the last answer."""
    begun = browser.get("/login/oidc", headers=HTML, follow_redirects=False)
    assert begun.status_code == 302, begun.text
    back = httpx.get(begun.headers["location"]).headers["location"]
    assert back.startswith(f"{PUBLIC}/login/oidc/callback?")
    return browser.get(back.removeprefix(PUBLIC), headers=HTML, follow_redirects=False)


def names(database: Database) -> list[str]:
    with database.read() as connection:
        return [user.name for user in list_users(connection)]


def test_without_a_provider_there_is_no_such_login(client: Any) -> None:
    assert client.get("/login/oidc", headers=HTML).status_code == 404
    assert "organisation" not in client.get("/login", headers=HTML).text


def test_a_first_login_makes_a_reader_and_a_second_one_finds_it(
    browser: Any, provider: LoopbackProvider, database: Database
) -> None:
    assert "/login/oidc" in browser.get("/login", headers=HTML).text
    answer = log_in(browser)
    assert answer.status_code == 200, answer.text
    assert answer.headers["refresh"] == "0; url=/leaderboard"
    cookie = next(text for text in answer.headers.get_list("set-cookie") if text.startswith("fib_serve_token"))
    assert {"httponly", "samesite=strict"} <= set(cookie.lower().split("; "))
    (name,) = names(database)
    assert name.startswith("alice-example-")
    assert name in browser.get("/queue", headers=HTML).text
    quota = browser.get("/v1/quota").json()
    assert (quota["user"], quota["role"]) == (name, "reader")
    provider.name = "Bob"
    assert log_in(browser).status_code == 200
    assert names(database) == [name]


def test_another_subject_with_the_same_name_is_another_account(
    browser: Any, provider: LoopbackProvider, database: Database
) -> None:
    log_in(browser)
    provider.subject = "other"
    log_in(browser)
    assert len(set(names(database))) == 2


def test_an_inactive_account_stays_outside(browser: Any, database: Database) -> None:
    log_in(browser)
    with database.write() as connection:
        change_user(connection, names(database)[0], Limits(is_active=False))
    assert "fib_serve_token" not in log_in(browser).headers.get("set-cookie", "")


@pytest.mark.parametrize(
    "changes",
    [{"nonce": "other"}, {"aud": "other"}, {"iss": "https://evil.example"}, {"exp": 1_000_000_000}, {"sub": ""}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_token_for_another_login_is_refused(
    browser: Any, provider: LoopbackProvider, database: Database, changes: dict[str, Any]
) -> None:
    provider.changes = changes
    answer = log_in(browser)
    assert answer.status_code == 403
    assert "fib_serve_token" not in answer.headers.get("set-cookie", "")
    assert names(database) == []


def test_a_token_with_a_wrong_signature_is_refused(
    browser: Any, provider: LoopbackProvider, database: Database
) -> None:
    provider.signing_key = RSAKey.generate_key(2048, {"kid": "1"})
    assert log_in(browser).status_code == 403
    provider.algorithm, provider.signing_key = "HS256", OctKey.import_key(SECRET * 2)
    assert log_in(browser).status_code == 403
    assert names(database) == []


def test_an_answer_that_this_browser_has_not_asked_for_is_refused(browser: Any, database: Database) -> None:
    begun = browser.get("/login/oidc", headers=HTML, follow_redirects=False)
    back = httpx.get(begun.headers["location"]).headers["location"].removeprefix(PUBLIC)
    browser.cookies.clear()
    assert browser.get(back, headers=HTML).status_code == 403
    assert browser.get("/login/oidc/callback", headers=HTML).status_code == 403
    assert browser.get("/login/oidc/callback?error=access_denied&state=x", headers=HTML).status_code == 403
    assert names(database) == []


def test_metadata_of_another_issuer_are_refused(browser: Any, provider: LoopbackProvider) -> None:
    provider.issuer = "http://127.0.0.1:1"
    assert browser.get("/login/oidc", headers=HTML).status_code == 403


@pytest.mark.parametrize(
    "changes",
    [
        {"oidc_client_id": None},
        {"public_url": None},
        {"has_auth": False},
        {"oidc_issuer": "http://provider.example"},
        {"public_url": "http://contest.example"},
    ],
)
def test_incomplete_or_unsafe_settings_are_refused(settings: Settings, changes: dict[str, Any]) -> None:
    right = {"oidc_issuer": "https://provider.example", "oidc_client_id": "x", "public_url": "https://contest.example"}
    attrs.evolve(settings, **right)
    with pytest.raises(InvalidSetting, match=r"--(oidc|public)"):
        attrs.evolve(settings, **{**right, **changes})


def test_the_role_of_new_accounts_can_be_chosen(
    make_client: Callable[..., Any], provider: LoopbackProvider, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OIDC_SECRET_VARIABLE, SECRET)
    options = {"oidc_issuer": provider.issuer, "oidc_client_id": CLIENT, "public_url": PUBLIC}
    assert log_in(make_client(**options, oidc_role="submitter")).status_code == 200
    with database.read() as connection:
        assert [user.role for user in list_users(connection)] == [Role.SUBMITTER]
