"""Routes for the operation of the service: readiness and metrics."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from ..errors import Unavailable
from ..identifiers import now
from ..queue.reading import list_devices
from .access import OfService, Reader

router = APIRouter(tags=["operation"])


@router.get("/ready")
async def ready(service: OfService) -> dict[str, str]:
    """Whether the service accepts submissions and a device is there to evaluate them; needs no token."""
    if service.is_draining:
        raise Unavailable("the service is stopping")
    oldest = now() - 3 * service.settings.lease_seconds
    with service.database.read() as connection:
        devices = list_devices(connection)
    if not any(device.is_healthy(oldest) for device in devices):
        raise Unavailable("no device worker is running")
    return {"status": "ready"}


@router.get("/metrics", response_class=Response)
async def metrics(service: OfService, _: Reader) -> Response:
    """Metrics in the format of Prometheus."""
    return Response(await run_in_threadpool(service.metrics.text), media_type=CONTENT_TYPE_LATEST)
