"""Runs the client in Python for clients_test.c. Prints 20 lines a second: the time, the units that
were used since the last line, the rate, and whether the rate is a lease."""

import os
import signal
import sys
import time

sys.path.append(os.path.join(os.path.dirname(__file__), "../../../examples/clients"))
from doorman import Client  # noqa: E402

urls, resource, wants = sys.argv[1:]
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
client = Client(urls.split(","), resource, float(wants))
while not stop:
    time.sleep(0.05)
    used = sum(client.try_use() for _ in range(100))
    source = "lease" if client.left() > 0 else "fallback"
    print(f"{time.time():.3f} {used} {client.rate():.3f} {source}", flush=True)
client.close()
