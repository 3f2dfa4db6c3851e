"""Runs the package of clients/python for shard_clients_test.c. A round asks 20 times for a unit of
each key, and reserves 5 units of the last one, of which it settles 2. It prints how many permits a
server has granted, and whether a server has counted the settle. There is a round at the start, and
after each SIGUSR2. Closes after SIGTERM."""

import os
import signal
import sys

sys.path.append(os.path.join(os.path.dirname(__file__), "../../../clients/python/src"))
from doorman.client import Client  # noqa: E402

SIGNALS = {signal.SIGTERM, signal.SIGUSR2}
url, token, *keys = sys.argv[1:]
signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
with Client(url, token=token, permit_timeout=3) as client:
    goes_on = True
    while goes_on:
        permits = [client.acquire("api", key, timeout=20) for _ in range(20) for key in keys]
        granted = sum(permit.granted and permit.by == "server" for permit in permits)
        reservation = client.reserve("api", keys[-1], 5, timeout=20)
        settled = reservation.settle(2, timeout=20)
        counted = bool(settled.granted and settled.by == "server")
        print("round", granted, "settled" if counted else "lost", flush=True)
        goes_on = signal.sigwait(SIGNALS) == signal.SIGUSR2
