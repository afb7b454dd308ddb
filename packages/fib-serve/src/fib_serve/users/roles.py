"""Roles. Each allows what the earlier ones allow; a token has the role of its scope, at most that of its user."""

from __future__ import annotations

from enum import StrEnum

import attrs

from ..errors import Forbidden


class Role(StrEnum):
    """Role of a user, or scope of a token."""

    READER = "reader"
    """Read leaderboards and the public parts of submissions."""
    SUBMITTER = "submitter"
    """Submit, and see its own sources, logs and traces."""
    MAINTAINER = "maintainer"
    """Manage users, see everything but hidden workloads, reject results, stop the service."""

    @property
    def rank(self) -> int:
        """Its place, the weakest first."""
        return list(Role).index(self)


@attrs.frozen
class Principal:
    """The user of a request, with the role that its token gives."""

    user_id: int
    name: str
    role: Role
    address: str = ""

    def require(self, role: Role) -> None:
        """Reject a weaker role.

        Raises:
            Forbidden: The role is weaker.
        """
        if self.role.rank < role.rank:
            raise Forbidden(f"this needs the role {role}, and your token has {self.role}; ask a maintainer")

    def may_see(self, owner_id: int) -> bool:
        """Whether sources, logs and traces of a user's submissions may be seen."""
        return self.role is Role.MAINTAINER or (self.role is Role.SUBMITTER and self.user_id == owner_id)
