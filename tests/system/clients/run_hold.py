"""Runs the hold in Python for hold_clients_test.c. Prints "held", "refused" or "gone". Releases the
hold after SIGUSR2, and before it ends, after SIGTERM."""

import os
import signal
import sys
import threading

sys.path.append(os.path.join(os.path.dirname(__file__), "../../../examples/clients"))
from hold import Hold  # noqa: E402

urls, resource, max_wait = sys.argv[1:]
ended = threading.Event()


def show(text):
    print(text, flush=True)


hold = Hold(urls.split(","), resource, max_wait=float(max_wait), on_gone=lambda: show("gone"))
signal.signal(signal.SIGTERM, lambda *_: ended.set())
signal.signal(signal.SIGUSR2, lambda *_: threading.Thread(target=hold.release).start())
show("held" if hold.acquire() else "refused")
while not ended.wait(0.05):
    pass
hold.release()
show("released")
