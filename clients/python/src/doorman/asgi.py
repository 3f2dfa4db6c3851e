"""Limits the requests of an ASGI application.

    client = AsyncClient(["http://127.0.0.1:15050"])
    application = RateLimit(application, client, "login", key=lambda scope: scope["client"][0])
"""
from __future__ import annotations

from typing import Any, Awaitable, Callable, Dict, Optional, Union

from ._web import check_status, headers_of, key_of, refusal_of
from .aio import AsyncClient

Scope = Dict[str, Any]
Send = Callable[[Dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Callable[[], Awaitable[Any]], Send], Awaitable[None]]


class RateLimit:
    """A middleware that asks for a permit for each request of HTTP. Other scopes pass.

    client: an AsyncClient, or a function that returns it, for a client that is made when the
    application starts.
    resource: a name, or a function of the scope that returns it; None: no limit.
    key: on whose behalf: a function of the scope. All requests without a key ("" or None) share
    one, which is the default. A key that a permit cannot have, such as one of more than 256 bytes,
    is replaced by its hash.
    cost: units, or a function of the scope.
    timeout: seconds; after it the fallback of the client decides.
    refuse_status: 429, 403 or 503.

    The decision is in the scope as `doorman.decision`, also for the application.
    """

    def __init__(self, application: Application,
                 client: Union[AsyncClient, Callable[[], AsyncClient]],
                 resource: Union[str, Callable[[Scope], Optional[str]]], *,
                 key: Callable[[Scope], Optional[str]] = lambda scope: "",
                 cost: Union[float, Callable[[Scope], float]] = 1, timeout: float = 1,
                 refuse_status: int = 429) -> None:
        self._application, self._client, self._resource = application, client, resource
        self._key, self._cost, self._timeout = key, cost, timeout
        self._status = check_status(refuse_status)

    async def __call__(self, scope: Scope, receive: Callable[[], Awaitable[Any]],
                       send: Send) -> None:
        resource: Optional[str] = None
        if scope["type"] == "http":
            resource = self._resource(scope) if callable(self._resource) else self._resource
        if resource is None:
            await self._application(scope, receive, send)
            return
        client = self._client if isinstance(self._client, AsyncClient) else self._client()
        cost = self._cost(scope) if callable(self._cost) else self._cost
        decision = await client.acquire(resource, key_of(self._key(scope)), cost,
                                        timeout=self._timeout, detail=True)
        scope = {**scope, "doorman.decision": decision}
        if not decision.granted:
            await self._refuse(decision, send)
            return
        limits = [(name.lower().encode(), value.encode()) for name, value in headers_of(decision)]

        async def send_with_limits(message: Dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *limits]}
            await send(message)

        await self._application(scope, receive, send_with_limits)

    async def _refuse(self, decision: Any, send: Send) -> None:
        _, headers, body = refusal_of(decision, self._status)
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": self._status, "headers": encoded})
        await send({"type": "http.response.body", "body": body})
