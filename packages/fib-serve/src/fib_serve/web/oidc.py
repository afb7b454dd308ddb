"""Login to the pages through an OpenID Connect provider: authorization code with PKCE, through authlib.

It is off unless the service names a provider. An account belongs to one subject of the provider: its name ends with a
hash of issuer and subject, so that nobody gets the account of another by choosing a name.
"""

from __future__ import annotations

import os
import re
import secrets
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Request
from sqlalchemy import Connection, select
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from ..database.tables import users
from ..errors import Forbidden, InvalidSetting, Unauthorized
from ..identifiers import digest
from ..settings import OIDC_SECRET_VARIABLE, Settings, is_loopback
from ..users.accounts import User, create_token, create_user, find_user
from ..users.audit_log import add_entry
from ..users.roles import Principal, Role
from .access import COOKIE
from .state import service_of

router = APIRouter(include_in_schema=False)
TOKEN_SECONDS = 12 * 3600.0
_LOGIN_SECONDS = 600
_HASH_DIGITS = 12
_MAX_NAME_CHARACTERS = 39 - 1 - _HASH_DIGITS
_MISSING = "OpenID Connect needs authlib: pip install 'fib-serve[oidc]'"


def add_oidc(app: FastAPI, settings: Settings) -> None:
    """Add the routes, if the service names a provider.

    Raises:
        InvalidSetting: A dependency is missing.
    """
    app.state.has_oidc = settings.oidc_issuer is not None
    if settings.oidc_issuer is None:
        return
    try:
        from authlib.integrations.starlette_client import OAuth
        from starlette.middleware.sessions import SessionMiddleware
    except ModuleNotFoundError as error:
        raise InvalidSetting("--oidc-issuer", _MISSING) from error
    if is_loopback(urlsplit(settings.oidc_issuer).hostname or ""):
        os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"  # a provider on this machine needs no TLS
    provider = OAuth().register(
        "provider",
        client_id=settings.oidc_client_id,
        client_secret=os.environ.get(OIDC_SECRET_VARIABLE),
        server_metadata_url=f"{settings.oidc_issuer.rstrip('/')}/.well-known/openid-configuration",
        client_kwargs={"scope": "openid profile", "code_challenge_method": "S256", "timeout": 10},
    )
    app.state.oidc_provider = provider
    app.add_middleware(
        SessionMiddleware,
        secret_key=secrets.token_hex(32),
        session_cookie="fib_serve_login",
        max_age=_LOGIN_SECONDS,
        same_site="lax",  # the provider sends the browser back
        https_only=_is_secure(settings),
    )
    app.include_router(router)


@router.get("/login/oidc")
async def begin(request: Request) -> Response:
    """Send the browser to the provider."""
    provider, settings = request.app.state.oidc_provider, service_of(request).settings
    await _check_issuer(provider, settings)
    answer: Response = await provider.authorize_redirect(request, f"{settings.public_url}/login/oidc/callback")
    return answer


@router.get("/login/oidc/callback")
async def callback(request: Request) -> Response:
    """Check the answer of the provider, and keep a token in the cookie of the pages."""
    from authlib.common.errors import AuthlibBaseError
    from httpx import HTTPError
    from joserfc.errors import JoseError

    provider, service = request.app.state.oidc_provider, service_of(request)
    try:
        await _check_issuer(provider, service.settings)
        found = await provider.authorize_access_token(request)
    except (AuthlibBaseError, JoseError, HTTPError, ValueError, KeyError) as error:
        raise Forbidden(f"the login has failed ({type(error).__name__}); try again from /login") from error
    claims = found.get("userinfo")
    if not claims or not claims.get("sub"):
        raise Forbidden("the provider told no subject; ask a maintainer")

    def write() -> str:
        with service.database.write() as connection:
            user = account_of(connection, service.settings, str(claims["sub"]), claims.get("preferred_username"))
            return create_token(connection, user, user.role, "login of a browser", TOKEN_SECONDS)[1]

    token = await run_in_threadpool(write)
    request.session.clear()
    # The cookie is for navigations within the site, and this one comes from another: a page of our own goes on.
    answer: Response = request.app.state.logged_in_page(request)
    answer.headers["Refresh"] = "0; url=/leaderboard"
    answer.set_cookie(
        COOKIE, token, int(TOKEN_SECONDS), httponly=True, samesite="strict", secure=_is_secure(service.settings)
    )
    return answer


def account_of(connection: Connection, settings: Settings, subject: str, wish: Any) -> User:
    """The account of a subject; the first login makes it.

    Raises:
        Unauthorized: A maintainer has made it inactive.
    """
    ending = "-" + digest(str(settings.oidc_issuer), subject)[:_HASH_DIGITS]
    name = connection.execute(select(users.c.name).where(users.c.name.endswith(ending))).scalar()
    if name is None:
        readable = re.sub(r"[^a-z0-9]+", "-", str(wish or "user").lower()).strip("-")[:_MAX_NAME_CHARACTERS].strip("-")
        name = (readable or "user") + ending
        user = create_user(connection, name, Role(settings.oidc_role), settings)
        add_entry(connection, Principal(user.id, name, user.role), "create user", name, "first login by OpenID Connect")
    user_found = find_user(connection, name)
    assert user_found is not None
    if not user_found.is_active:
        raise Unauthorized(f"the account {name!r} is not active; ask a maintainer")
    return user_found


async def _check_issuer(provider: Any, settings: Settings) -> None:
    """Reject the metadata of another issuer.

    Raises:
        Forbidden: They are.
    """
    metadata = await provider.load_server_metadata()
    if str(metadata.get("issuer")).rstrip("/") != str(settings.oidc_issuer).rstrip("/"):
        raise Forbidden("the provider's metadata name another issuer; ask a maintainer")


def _is_secure(settings: Settings) -> bool:
    return str(settings.public_url).startswith("https://")
