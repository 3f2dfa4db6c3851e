"""A client of Doorman over HTTP: leases, permits, holds and reservations.

`Client` has threads, and any thread may call it. `AsyncClient` is for asyncio. `doorman.wsgi` and
`doorman.asgi` limit the requests of a web application.
"""
from ._calls import Acquired, Held, Item, Permit
from ._engine import new_client_id
from ._limiters import Limit
from ._version import VERSION
from .aio import AsyncClient, AsyncGauge, AsyncHold, AsyncRate, AsyncReservation
from .client import Client, Gauge, Hold, Rate, Reservation
from .errors import Refused
from .leases import ResourceInfo, ResourceOptions
from .permits import PermitPolicy

__version__ = VERSION
__all__ = ["Acquired", "AsyncClient", "AsyncGauge", "AsyncHold", "AsyncRate", "AsyncReservation",
           "Client", "Gauge", "Held", "Hold", "Item", "Limit", "Permit", "PermitPolicy", "Rate",
           "Refused", "Reservation", "ResourceInfo", "ResourceOptions", "new_client_id"]
