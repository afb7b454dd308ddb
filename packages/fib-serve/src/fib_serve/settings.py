"""Settings of one service. The supervisor parses them once and hands them to its processes as JSON."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import msgspec
from fib_bench import BenchmarkConfig
from fib_schema import TraceSet

from .errors import InvalidSetting

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
    devices: tuple[str, ...] = ("cpu",)
    host: str = "127.0.0.1"
    port: int = 8000
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
    submission_seconds: float = 1800.0
    """The bound on the evaluation of one submission."""
    lease_seconds: float = 60.0
    """A submission whose worker has not reported for so long is evaluated again."""
    drain_seconds: float = 600.0
    max_body_bytes: int = 4 << 20
    max_running: int = 2
    """Of one user, unless the user has a limit of its own; likewise the next two."""
    max_queued: int = 100
    max_per_day: int = 1000
    requests_per_second: float = 50.0
    """Of one user, averaged over ten seconds; a service without tokens has no such limit."""
    log_level: str = "info"

    def __attrs_post_init__(self) -> None:
        if not self.has_auth and not is_loopback(self.host):
            problem = f"serves everybody who reaches {self.host}; use it with --host 127.0.0.1, or create tokens"
            raise InvalidSetting("--no-auth", problem)
        if self.hidden is not None and _overlap(Path(self.hidden), Path(self.dataset)):
            raise InvalidSetting("--hidden", "the folder must lie outside of the data set, which is public")
        for private in filter(None, (self.hidden, self.state)):
            if "\x00" in private:
                raise InvalidSetting("paths", "contain a null character")

    @property
    def database_path(self) -> Path:
        """The file of the database."""
        return Path(self.state) / "serve.sqlite3"

    @property
    def work_path(self) -> Path:
        """An empty folder, in which all processes run: Python makes the current one readable to workers."""
        return Path(self.state) / "empty"

    @property
    def private_paths(self) -> tuple[Path, ...]:
        """The paths that no worker may open."""
        roots = (self.dataset, self.hidden, self.state)
        return tuple(Path(path) for path in (*roots, str(self.database_path)) if path is not None)

    def benchmark_config(self, device: str, root: str) -> BenchmarkConfig:
        """The settings of the judge of a device, above those of a data set.

        Raises:
            InvalidConfig: A field, or the ``fib-bench.yaml`` of the data set, is not valid.
        """
        fields: dict[str, Any] = dict(self.evaluation)
        return BenchmarkConfig(device=device, **fields).for_data_set(TraceSet.from_path(root))

    def to_json(self) -> str:
        """The settings for another process."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The settings that `to_json` wrote."""
        return msgspec.json.decode(text, type=cls)


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
