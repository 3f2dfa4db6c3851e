"""Runs the reservations in Python for reservation_clients_test.c. Reserves 6 units, and settles 1
after SIGUSR2. Then it reserves 3 units, and an exception ends the scope. Closes after SIGTERM."""

import os
import signal
import sys

sys.path.append(os.path.join(os.path.dirname(__file__), "../../../examples/clients"))
from reservation import Reservations  # noqa: E402

urls, resource = sys.argv[1:]
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
client = Reservations(urls.split(","))
first = client.reserve(resource, "acme", 6)
print("granted" if first.granted else "refused", flush=True)
signal.sigwait({signal.SIGUSR2})
with first:
    first.cost = 1
try:
    with client.reserve(resource, "acme", 3) as second:
        second.cost = 0
        raise ValueError("failed" if second.granted else "refused")
except ValueError as error:
    print(error, flush=True)
signal.sigwait({signal.SIGTERM})
client.close()
print("lost", client.lost, flush=True)
