"""The same records as pydantic v2 models, with the checks that such models usually have."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, model_validator


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, ser_json_inf_nan="strings")


class RandomInput(Strict):
    type: Literal["random"]


class ScalarInput(Strict):
    type: Literal["scalar"]
    value: int | float | bool


class SafetensorsInput(Strict):
    type: Literal["safetensors"]
    path: str
    tensor_key: str


Input = Annotated[RandomInput | ScalarInput | SafetensorsInput, Field(discriminator="type")]


class Workload(Strict):
    axes: dict[str, NonNegativeInt]
    inputs: dict[str, Input]
    uuid: str = Field(min_length=1)


class Status(StrEnum):
    PASSED = "PASSED"
    INCORRECT_SHAPE = "INCORRECT_SHAPE"
    INCORRECT_NUMERICAL = "INCORRECT_NUMERICAL"
    INCORRECT_DTYPE = "INCORRECT_DTYPE"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    COMPILE_ERROR = "COMPILE_ERROR"
    TIMEOUT = "TIMEOUT"


class Correctness(Strict):
    max_relative_error: NonNegativeFloat = 0.0
    max_absolute_error: NonNegativeFloat = 0.0
    extra: dict[str, Any] | None = None


class Performance(Strict):
    latency_ms: NonNegativeFloat = 0.0
    reference_latency_ms: NonNegativeFloat = 0.0
    speedup_factor: NonNegativeFloat = 0.0


class Environment(Strict):
    hardware: str
    libs: dict[str, str] = {}


class Evaluation(Strict):
    status: Status
    environment: Environment
    timestamp: str
    log: str = ""
    correctness: Correctness | None = None
    performance: Performance | None = None

    @model_validator(mode="after")
    def check(self) -> Evaluation:
        judged = self.status in (Status.PASSED, Status.INCORRECT_NUMERICAL)
        if judged != (self.correctness is not None):
            raise ValueError("correctness does not fit the status")
        if (self.status is Status.PASSED) != (self.performance is not None):
            raise ValueError("performance does not fit the status")
        return self


class Trace(Strict):
    definition: str = Field(min_length=1)
    workload: Workload
    solution: str | None = None
    evaluation: Evaluation | None = None
