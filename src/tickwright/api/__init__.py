"""The REST API: ``create_app(ApiContext(...))`` is an ASGI application, which ``rest.listener.Listener`` serves."""

from tickwright.api.app import create_app
from tickwright.api.context import ApiContext, ApiLimits, Readiness

__all__ = ["ApiContext", "ApiLimits", "Readiness", "create_app"]
