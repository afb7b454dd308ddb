"""Tables of the database. Times are seconds since 1970 (UTC). The migrations create them; a test compares both."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

LARGEST_ID = 2**31 - 1
"""Largest id of a row: PostgreSQL's integers have four bytes, and it refuses to compare them with a larger number."""

metadata = MetaData()

users = Table(
    "users",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(40), nullable=False, unique=True),
    Column("role", String(20), nullable=False),
    Column("is_active", Boolean, nullable=False, default=True),
    Column("weight", Float, nullable=False, default=1.0),
    Column("max_running", Integer, nullable=False),
    Column("max_queued", Integer, nullable=False),
    Column("max_per_day", Integer, nullable=False),
    Column("virtual_time", Float, nullable=False, default=0.0),  # of weighted fair queueing, in turns
    Column("created_at", Float, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("user_id", ForeignKey("users.id"), nullable=False, index=True),
    Column("label", String(100), nullable=False),
    Column("scope", String(20), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("revoked_at", Float),
)

submissions = Table(
    "submissions",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", String(32), nullable=False, unique=True),
    Column("user_id", ForeignKey("users.id"), nullable=False),
    Column("definition", String(200), nullable=False),
    Column("solution_name", String(200), nullable=False),
    Column("solution", Text, nullable=False),
    Column("content_hash", String(64), nullable=False),
    Column("workloads", JSON(none_as_null=True)),  # uuids; null means all
    Column("idempotency_key", String(200)),
    Column("request_hash", String(64), nullable=False),
    Column("priority", Integer, nullable=False, default=0),
    Column("deadline", Float),
    Column("state", String(10), nullable=False),
    Column("is_cancelling", Boolean, nullable=False, default=False),
    Column("error", Text),
    Column("attempts", Integer, nullable=False, default=0),
    Column("lease", String(32)),
    Column("lease_expires_at", Float),
    Column("device", String(100)),
    Column("hardware", String(200)),
    Column("harness", String(200)),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("planned", Integer, nullable=False, default=0),  # public workloads that it runs on
    Column("passed", Integer, nullable=False, default=0),
    Column("verdict", String(40)),
    Column("summary", JSON(none_as_null=True)),  # shown by leaderboards, see `standings`
    Column("is_ranked", Boolean, nullable=False, default=False),
    Column("score", Float),
    Column("rejection", Text),  # the reason of a maintainer
    UniqueConstraint("user_id", "idempotency_key"),
    Index("submissions_queue", "state", "user_id", "priority"),
    Index("submissions_content", "user_id", "content_hash"),
    Index("submissions_user_number", "user_id", "number"),
    Index("submissions_user_time", "user_id", "created_at"),
    Index("submissions_definition_number", "definition", "number"),
    Index("submissions_rank", "definition", "is_ranked", "hardware", "user_id", "score"),
    Index("submissions_records", "definition", "is_ranked", "hardware", "number", "score"),
    Index("submissions_name", "solution_name"),
)

results = Table(
    "results",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("submission_id", ForeignKey("submissions.id"), nullable=False),
    Column("workload", String(200), nullable=False),
    Column("is_hidden", Boolean, nullable=False),
    Column("status", String(40), nullable=False),
    Column("trace", Text),  # null for hidden workloads, whose traces are only in their files
    UniqueConstraint("submission_id", "workload", "is_hidden"),
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("submission_id", ForeignKey("submissions.id"), nullable=False, index=True),
    Column("kind", String(20), nullable=False),
    Column("data", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    sqlite_autoincrement=True,  # clients resume after a number, which must not be used again
)

devices = Table(
    "devices",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("hardware", String(200), nullable=False),
    Column("harness", String(200), nullable=False),
    Column("isolation", Integer, nullable=False),
    Column("isolation_text", Text, nullable=False),
    Column("submission_id", String(32)),
    Column("seen_at", Float, nullable=False),
    Column("problem", Text),
)

queue_clock = Table(
    "queue_clock",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("virtual_time", Float, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("user", String(40), nullable=False),
    Column("address", String(100), nullable=False),
    Column("action", String(40), nullable=False),
    Column("subject", String(200), nullable=False),
    Column("detail", Text, nullable=False),
)
