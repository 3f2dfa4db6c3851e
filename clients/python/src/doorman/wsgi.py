"""Limits the requests of a WSGI application (PEP 3333).

    application = RateLimit(application, lambda: Client(["http://127.0.0.1:15050"]), "login",
                            key=lambda env: env["REMOTE_ADDR"])
"""
from __future__ import annotations

import os
import threading
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Union

from ._web import check_status, headers_of, key_of, refusal_of
from .client import Client

Environ = Dict[str, Any]
Application = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


class OfProcess:
    """Makes one client in each process."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        self._made: Tuple[int, Optional[Client]] = 0, None
        self._locks: Dict[int, threading.Lock] = {}

    def get(self) -> Client:
        """Returns the client of this process."""
        pid, (owner, client) = os.getpid(), self._made
        if client and owner == pid:
            return client
        # Each process has its own lock: a fork can come while another thread has the lock.
        with self._locks.setdefault(pid, threading.Lock()):
            owner, client = self._made
            if not client or owner != pid:
                client = self._make()
                self._made = pid, client
        return client


class RateLimit:
    """A middleware that asks for a permit for each request.

    client: a Client, or a function that makes it. The first request of each process calls it, so
    a server can load the application before it forks.
    resource: a name, or a function of the environ that returns it; None: no limit.
    key: on whose behalf: a function of the environ. All requests without a key ("" or None) share
    one, which is the default. A key that a permit cannot have, such as one of more than 256 bytes,
    is replaced by its hash.
    cost: units, or a function of the environ.
    timeout: seconds; after it the fallback of the client decides.
    refuse_status: 429, 403 or 503.

    Behind a proxy, REMOTE_ADDR is the address of the proxy. The decision is in the environ as
    `doorman.decision`, also for the application.
    """

    def __init__(self, application: Application, client: Union[Client, Callable[[], Client]],
                 resource: Union[str, Callable[[Environ], Optional[str]]], *,
                 key: Callable[[Environ], Optional[str]] = lambda environ: "",
                 cost: Union[float, Callable[[Environ], float]] = 1, timeout: float = 1,
                 refuse_status: int = 429) -> None:
        self._application, self._resource = application, resource
        self._client: Union[Client, OfProcess] = (
            client if isinstance(client, Client) else OfProcess(client))
        self._key, self._cost, self._timeout = key, cost, timeout
        self._status = check_status(refuse_status)

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        resource = self._resource(environ) if callable(self._resource) else self._resource
        if resource is None:
            return self._application(environ, start_response)
        cost = self._cost(environ) if callable(self._cost) else self._cost
        client = self._client if isinstance(self._client, Client) else self._client.get()
        decision = client.acquire(resource, key_of(self._key(environ)), cost,
                                  timeout=self._timeout, detail=True)
        environ["doorman.decision"] = decision
        if not decision.granted:
            status, headers, body = refusal_of(decision, self._status)
            start_response(status, headers)
            return [body]
        limits = headers_of(decision)

        def start(status: str, headers: List[Tuple[str, str]], *rest: Any) -> Any:
            return start_response(status, [*headers, *limits], *rest)

        return self._application(environ, start)
