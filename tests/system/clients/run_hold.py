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
SIGNALS = {signal.SIGTERM, signal.SIGUSR2}


def show(text):
    print(text, flush=True)


def wait_for_signals():
    """A handler would run between two steps of the main thread, which may have the lock of `ended`
    then. So a thread of its own waits for signals."""
    while signal.sigwait(SIGNALS) == signal.SIGUSR2:
        hold.release()
    ended.set()


hold = Hold(urls.split(","), resource, max_wait=float(max_wait), on_gone=lambda: show("gone"))
signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
threading.Thread(target=wait_for_signals, daemon=True).start()
show("held" if hold.acquire() else "refused")
ended.wait()
hold.release()
show("released")
