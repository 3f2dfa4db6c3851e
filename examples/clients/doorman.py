"""A client of Doorman for one rate, over HTTP, with nothing but the standard library.

    client = Client(["http://127.0.0.1:15050"], "db/orders", wants=50)
    if client.try_use():
        ...  # do one unit of work
    client.close()

Copy this file into your program. Numbers such as (4) name the "Rules for a client" of
examples/protocol.md. A thread renews the lease in the background. Every method may be called from
any thread. The client wants a fixed rate, and uses a new connection for each request.
"""

import http.client
import json
import os
import random
import signal
import socket
import sys
import threading
import time
import urllib.request
import uuid

BURST = 0.1  # seconds of the rate that an idle client saves
TIMEOUT = 5.0  # seconds for one request
REDIRECTS_MAX = 5
FAILURES = (OSError, http.client.HTTPException, ValueError, KeyError, IndexError, TypeError)


def clocks():
    """Both clocks count, because the first one stops while the machine is suspended (1)."""
    return time.monotonic(), time.time()


class Client:
    def __init__(self, urls, resource, wants, safe_capacity=0.0, token=None):
        """wants and safe_capacity are rates, in units per second. A server can change the safe
        capacity. The client uses it when it has no lease; -1 means unlimited."""
        self.urls, self.resource, self.wants = list(urls), resource, wants
        self.id = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}"
        self.headers = {"Content-Type": "application/json"}
        if token:
            self.headers["Authorization"] = "Bearer " + token
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.lock = threading.Lock()  # guards lease, ends, safe_capacity and paid_until
        self.lease, self.ends = None, (0.0, 0.0)  # the last lease, and its end on both clocks
        self.problem = None  # why the last request got no lease, for people
        self.safe_capacity = safe_capacity
        self.paid_until = time.monotonic()  # a new client has saved nothing
        self.url, self.failures, self.was_cut = self.urls[0], 0, False
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def rate(self):
        """Returns how many units the client may use in a second, now."""
        if self.has_lease():
            return self.lease["capacity"]  # also if it is 0 (4)
        return self.safe_capacity if self.safe_capacity >= 0 else float("inf")  # (8)

    def has_lease(self):
        return self._left() > 0

    def try_use(self, n=1):
        """Takes n units and returns True, or returns False if the rate does not allow them now.

        paid_until is the time up to which the rate has paid for the units that were used. The time
        since then is saved, but at most BURST, or the time of these n units if that is longer."""
        with self.lock:
            now, rate = time.monotonic(), self.rate()
            if self.stopped.is_set() or rate <= 0:
                return False
            cost = n / rate
            paid_until = max(self.paid_until, now - max(BURST, cost)) + cost
            if paid_until > now:
                return False
            self.paid_until = paid_until
            return True

    def close(self):
        """Stops using the lease, and gives it back, so that others need not wait for its end."""
        self.stopped.set()
        self.thread.join()  # after the response in flight (9)
        if self.has_lease():
            try:
                resource = {"resource_id": self.resource, "id": self.lease["id"]}
                self._post("release_capacity", resource)
            except FAILURES:
                pass  # the lease ends by itself

    def _left(self):
        return min(end - now for end, now in zip(self.ends, clocks()))

    def _run(self):
        while not self.stopped.wait(self._renew()):
            pass

    def _renew(self):
        """Asks, and follows the master. Returns how many seconds to wait before the next call."""
        for _ in range(1 + REDIRECTS_MAX):
            try:
                wait, master = self._ask()
            except FAILURES as failure:
                self.problem, failures_max = str(failure), 6
                break
            if wait is not None:
                self.failures = 0
                return wait
            self.problem, failures_max = "there is no master", 2
            if not master or (self.url.startswith("https:") and not master.startswith("https:")):
                break
            self.url = master  # (7)
        self.failures = min(self.failures + 1, failures_max)  # (6)
        next_url = self.urls.index(self.url) + 1 if self.url in self.urls else 0
        self.url = self.urls[next_url % len(self.urls)]
        wait = random.uniform(1, min(60, 2 ** self.failures))
        return max(1, min(wait, self._left() / 4)) if self.has_lease() else wait

    def _ask(self):
        """Sends one request. Returns how long to wait, or None and the address of the master."""
        item, sent, has = {"resource_id": self.resource, "wants": self.wants}, clocks(), None
        if self.has_lease():
            has = item["has"] = dict(self.lease, expires_in=self._left())  # (3)
        answer = self._post("get_capacity", item)
        if "mastership" in answer:
            return None, answer["mastership"].get("http_address")
        result = answer["response"][0]
        if time.monotonic() - sent[0] > TIMEOUT:
            raise TimeoutError("the response came too late")
        if has and not self.has_lease():
            return 0, None  # ask again without the lease (2)
        with self.lock:
            self.safe_capacity = result.get("safe_capacity", self.safe_capacity)
            if "refused" in result:  # the last lease stays until its end
                self.problem = result["refused"]["reason"]
                return self._late(result["refused"]["refresh_interval"]), None
            gets = result["gets"]
            wait = self._late(min(gets["refresh_interval"], max(1, gets["expires_in"] / 2)))  # (5)
            lease = {key: gets[key] for key in ("id", "node", "capacity")}
            self.ends = tuple(start + gets["expires_in"] for start in sent)
            self.lease, self.problem = lease, None
        was_cut, self.was_cut = self.was_cut, has and lease["capacity"] < has["capacity"]
        if self.was_cut:  # confirm the smaller lease, so that others get the difference (4)
            return (1 if was_cut else 0), None
        return wait, None

    def _post(self, method, resource):
        body = json.dumps({"client_id": self.id, "resource": [resource]}).encode()
        request = urllib.request.Request(f"{self.url}/v1/{method}", body, self.headers)
        with self.opener.open(request, timeout=TIMEOUT) as response:
            return json.load(response)

    @staticmethod
    def _late(seconds):
        return seconds * random.uniform(1, 1.05)


def main():
    """Uses as much as the server allows. Ten times a second, prints the time, the units that were
    used since the last line, the rate, and whether the rate is a lease."""
    if len(sys.argv) != 4:
        sys.exit("Usage: doorman.py URL[,URL...] RESOURCE WANTS")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    client = Client(sys.argv[1].split(","), sys.argv[2], wants=float(sys.argv[3]))
    try:
        used, line_due = 0, time.time() + 0.1
        while True:
            if client.try_use():
                used += 1  # here is the work
            else:
                time.sleep(0.005)
            now = time.time()
            if now >= line_due:
                source = "lease" if client.has_lease() else "fallback"
                print(f"{now:.3f} {used} {client.rate():.3f} {source}", flush=True)
                used, line_due = 0, now + 0.1
    except KeyboardInterrupt:
        pass
    finally:
        client.close()


if __name__ == "__main__":
    main()
