"""Settings of one service. The supervisor parses them once and hands them to its processes as JSON."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import msgspec
from fib_bench import BenchmarkConfig
from fib_compile import InvalidDevice
from fib_compile.device import parse_device
from fib_schema import TraceSet

from .cluster_address import ADDRESS
from .errors import InvalidSetting

DATABASE_VARIABLE = "FIB_SERVE_DATABASE"
"""The URL of the database, for commands without ``--database`` and for the processes of a service."""
OIDC_SECRET_VARIABLE = "FIB_SERVE_OIDC_SECRET"
"""The secret of the service as a client of the OpenID Connect provider."""
EXECUTORS = ("local", "ray")
RAY_DEVICES = ("cpu", "cuda:0")
STRONGEST = 3
"""The highest isolation level of fib-bench."""


@attrs.frozen(kw_only=True)
class Settings:
    """Settings of one service."""

    dataset: str
    """The folder of the data set, whose workloads are public."""
    hidden: str | None = None
    """The folder of a second data set with the same definitions, whose workloads are never served."""
    state: str
    """The folder of the database, private to the user that runs the service."""
    database: str | None = attrs.field(default=None, repr=False)
    """The URL of a PostgreSQL database, which may hold a password; None means a SQLite file in the state folder."""
    executor: str = "local"
    """One of `EXECUTORS`: workers on this machine, or on the nodes of a Ray cluster."""
    address: str | None = None
    """The address of the Ray cluster; None starts one on this machine."""
    devices: tuple[str, ...] = ("cpu",)
    """The devices of this machine; with Ray one of `RAY_DEVICES`, for the devices of that kind of all nodes."""
    concurrency: int | None = None
    """Workers that share each CUDA device, of which only one times a pass at a moment; None depends on the cores."""
    host: str = "127.0.0.1"
    port: int = 8000
    has_auth: bool = True
    has_public_pages: bool = False
    """Whether leaderboards can be read without a token."""
    allow_unranked: bool = False
    """Whether latencies without trusted timing (CPU) rank."""
    publish_sources: bool = False
    """Whether every reader sees the sources of all submissions."""
    public_url: str | None = None
    """The address of the pages for browsers, needed by a login through a provider."""
    oidc_issuer: str | None = None
    """The OpenID Connect provider that logs browsers in."""
    oidc_client_id: str | None = None
    oidc_role: str = "reader"
    """The role of an account that a first login through the provider makes."""
    required_isolation: int = STRONGEST
    evaluation: Mapping[str, int | float] = attrs.field(factory=dict)
    """Fields of `fib_bench.BenchmarkConfig`."""
    submission_seconds: float = 1800.0
    """The bound on the evaluation of one submission."""
    lease_seconds: float = 60.0
    """A submission whose worker has not reported for so long is evaluated again."""
    drain_seconds: float = 600.0
    max_body_bytes: int = 4 << 20
    max_running: int = 2
    """Limit of one user, unless the user has a limit of its own, like the next two settings."""
    max_queued: int = 100
    max_per_day: int = 1000
    requests_per_second: float = 50.0
    """Limit of one user, averaged over ten seconds; a service without tokens has no such limit."""
    log_level: str = "info"

    def __attrs_post_init__(self) -> None:
        if not self.has_auth and not is_loopback(self.host):
            problem = f"serves everybody who reaches {self.host}; use it with --host 127.0.0.1, or create tokens"
            raise InvalidSetting("--no-auth", problem)
        if self.hidden is not None and _overlap(Path(self.hidden), Path(self.dataset)):
            raise InvalidSetting("--hidden", "the folder must lie outside of the data set, which is public")
        self._check_provider()
        self._check_devices()
        self._check_executor()
        for private in filter(None, (self.hidden, self.state)):
            if "\x00" in private:
                raise InvalidSetting("paths", "contain a null character")

    def _check_devices(self) -> None:
        for device in self.devices:
            try:
                parse_device(device)
            except InvalidDevice as error:
                raise InvalidSetting("--devices", str(error)) from error
            if self.devices.count(device) > 1:
                raise InvalidSetting("--devices", f"{device} is named twice")

    def _check_executor(self) -> None:
        if self.executor == "local" and self.address is not None:
            raise InvalidSetting("--address", "only a Ray cluster has one: add --executor ray")
        if self.executor != "ray":
            return
        if self.devices not in {(name,) for name in RAY_DEVICES}:
            kinds = " or ".join(RAY_DEVICES)
            raise InvalidSetting("--devices", f"a Ray cluster lists its devices itself; name their kind: {kinds}")
        if self.address is not None and not ADDRESS.fullmatch(self.address):
            problem = f"{self.address!r} is not the address of a Ray cluster; write HOST:PORT, or auto for this machine"
            raise InvalidSetting("--address", problem)
        if self.concurrency is not None:
            raise InvalidSetting("--concurrency", "a device of a Ray cluster evaluates one submission at a time")
        if find_spec("ray") is None:
            raise InvalidSetting("--executor", "Ray is not installed: pip install 'fib-serve[ray]'")

    def _check_provider(self) -> None:
        if self.oidc_issuer is None:
            return
        if not self.oidc_client_id or not self.public_url or not self.has_auth:
            raise InvalidSetting("--oidc-issuer", "needs --oidc-client-id and --public-url, and excludes --no-auth")
        for option, url in (("--oidc-issuer", self.oidc_issuer), ("--public-url", self.public_url)):
            parts = urlsplit(url)
            if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
                raise InvalidSetting(option, "must be an https:// URL, or http:// on loopback")

    @property
    def database_path(self) -> Path:
        """The file of a SQLite database."""
        return Path(self.state) / "serve.sqlite3"

    @property
    def has_database(self) -> bool:
        """Whether there is a database; a server counts as one, whatever it has."""
        return self.database is not None or self.database_path.exists()

    @property
    def work_path(self) -> Path:
        """An empty folder, in which all processes run: Python makes the current one readable to workers."""
        return Path(self.state) / "empty"

    @property
    def private_paths(self) -> tuple[Path, ...]:
        """The paths that no worker may open."""
        roots = (self.dataset, self.hidden, self.state, str(self.database_path) if self.database is None else None)
        return tuple(Path(path) for path in roots if path is not None)

    def benchmark_configs(self, device: str) -> Mapping[Path, BenchmarkConfig]:
        """The settings of the judges of a device, by data set: above those of the data set.

        Raises:
            InvalidConfig: A field, or the ``fib-bench.yaml`` of a data set, is not valid.
        """
        fields: dict[str, Any] = dict(self.evaluation)
        config = BenchmarkConfig(device=device, concurrency=self.concurrency, **fields)
        roots = [Path(root) for root in (self.dataset, self.hidden) if root is not None]
        return {root: config.for_data_set(TraceSet.from_path(root)) for root in roots}

    def to_json(self) -> str:
        """The settings for another process, without the URL of the database: everybody can read command lines."""
        return msgspec.json.encode(attrs.evolve(self, database=None)).decode()

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The settings that `to_json` wrote, with the URL of the database from the environment, where it is removed."""
        return attrs.evolve(msgspec.json.decode(text, type=cls), database=os.environ.pop(DATABASE_VARIABLE, None))


def default_state(dataset: Path) -> Path:
    """The state folder beside a data set: ``NAME.fib-serve``."""
    return dataset.with_name(f"{dataset.name}.fib-serve")


def make_state(path: Path) -> None:
    """Make the state folder, which only this user may open.

    Raises:
        InvalidSetting: It belongs to another user.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise InvalidSetting("--state", f"{path} belongs to another user; name a folder of your own")
    path.chmod(0o700)
    (path / "empty").mkdir(mode=0o700, exist_ok=True)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _overlap(first: Path, second: Path) -> bool:
    one, other = first.resolve(), second.resolve()
    return one.is_relative_to(other) or other.is_relative_to(one)
