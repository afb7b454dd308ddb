"""Settings of one service, and its state folder."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import attrs
from fib_compile import InvalidDevice
from fib_compile.device import parse_device

from .errors import InvalidSetting

EXECUTORS = ("local", "ray")
LOG_LEVELS = ("debug", "info", "warning", "error")
_RAY_DEVICES = ("cpu", "cuda:0")
_ADDRESS = re.compile(r"auto|(?:[\w.-]+|\[[0-9a-fA-F:.%]+\]):[0-9]{1,5}")
"""Addresses of a Ray cluster. ``auto`` is the one that runs on this machine."""
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
    executor: str = "local"
    """One of `EXECUTORS`: workers on this machine, or on the nodes of a Ray cluster."""
    address: str | None = None
    """The address of the Ray cluster; None starts one on this machine."""
    devices: tuple[str, ...] = ("cpu",)
    """The devices of this machine; with Ray ``cpu`` or ``cuda:0``, for the devices of that kind of all nodes."""
    host: str = "127.0.0.1"
    port: int = 8000
    proxy: str | None = None
    """The address of a reverse proxy, whose headers X-Forwarded-For and X-Forwarded-Proto are trusted."""
    has_auth: bool = True
    has_public_pages: bool = False
    """Whether leaderboards can be read without a token."""
    allow_unranked: bool = False
    """Whether latencies without trusted timing (CPU) rank."""
    publish_sources: bool = False
    """Whether every reader sees the sources of all submissions."""
    required_isolation: int = STRONGEST
    evaluation: Mapping[str, int | float] = attrs.field(factory=dict)
    """Fields of `fib_bench.BenchmarkConfig`."""
    title: str = "Leaderboards"
    """The title of the page of the contest."""
    rules: str = ""
    """The text of the rules on that page."""
    deadline: datetime | None = None
    """The time after which nothing is accepted, with its zone."""
    submission_seconds: float = 1800.0
    """The bound on the evaluation of one submission."""
    max_running: int = 2
    """Limit of one user, like the next setting."""
    max_per_day: int = 1000
    log_level: str = "info"

    def __attrs_post_init__(self) -> None:
        if not self.has_auth and not is_loopback(self.host):
            problem = f"serves everybody who reaches {self.host}; use it with --host 127.0.0.1, or create tokens"
            raise InvalidSetting("--no-auth", problem)
        if self.hidden is not None and _overlap(Path(self.hidden), Path(self.dataset)):
            raise InvalidSetting("--hidden", "the folder must lie outside of the data set, which is public")
        for address in (self.proxy or "127.0.0.1").split(","):
            try:
                ipaddress.ip_network(address.strip())
            except ValueError as error:
                raise InvalidSetting("--proxy", f"{address!r} is no address or network, such as 127.0.0.1") from error
        self._check_devices()
        self._check_executor()
        for name in ("submission_seconds", "max_running", "max_per_day"):
            if not 0 < (value := getattr(self, name)) < 1e12:
                raise InvalidSetting(f"--{name.replace('_', '-')}", f"must be greater than 0 and finite, got {value}")
        if not 0 <= self.port < 1 << 16:
            raise InvalidSetting("--port", f"must be from 0 to 65535, got {self.port}")

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
        if self.devices not in {(name,) for name in _RAY_DEVICES}:
            kinds = " or ".join(_RAY_DEVICES)
            raise InvalidSetting("--devices", f"a Ray cluster lists its devices itself; name their kind: {kinds}")
        if self.address is not None and not _ADDRESS.fullmatch(self.address):
            problem = f"{self.address!r} is not the address of a Ray cluster; write HOST:PORT, or auto for this machine"
            raise InvalidSetting("--address", problem)
        if find_spec("ray") is None:
            raise InvalidSetting("--executor", "Ray is not installed: pip install 'fib-serve[ray]'")

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and self.deadline < datetime.now(UTC)

    @property
    def database_path(self) -> Path:
        """The file of the database."""
        return Path(self.state) / "serve.sqlite3"

    @property
    def work_path(self) -> Path:
        """An empty folder, in which the service and its judges run: workers can read the current folder."""
        return Path(self.state) / "empty"

    @property
    def private_paths(self) -> tuple[Path, ...]:
        """The paths that no worker may open."""
        roots = (self.dataset, self.hidden, self.state, str(self.database_path))
        return tuple(Path(path) for path in roots if path is not None)


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
