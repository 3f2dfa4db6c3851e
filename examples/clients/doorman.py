"""A client of Doorman for one rate, over HTTP, with nothing but the standard library.

    client = Client(["http://127.0.0.1:15050"], "db/orders", wants=50)
    if client.try_use():
        ...  # do one unit of work
    client.close()

Copy this file into your program. The rules are those of examples/protocol.md, "How to write a
client". A thread renews the lease in the background. Every method may be called from any thread.
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
        self.lock = threading.Lock()  # guards lease, end, safe_capacity and paid_until
        self.lease, self.end = None, 0.0  # the last lease, and when it ends
        self.refused = None  # the reason of the last response, such as "UNMATCHED"
        self.safe_capacity = safe_capacity
        self.paid_until = time.monotonic()  # a new client has saved nothing
        self.url = self.urls[0]  # the process that answered last
        self.backoff = 1.0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def rate(self):
        """Returns how many units the client may use in a second, now."""
        with self.lock:
            return self._rate(time.monotonic())

    def has_lease(self):
        with self.lock:
            return time.monotonic() < self.end

    def try_use(self, n=1):
        """Takes n units and returns True, or returns False if the rate does not allow them now.

        paid_until is the time up to which the rate has paid for the units that were used. The time
        since then is saved, but at most BURST, or the time of these n units if that is longer."""
        with self.lock:
            now = time.monotonic()
            rate = self._rate(now)
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
        self.thread.join()
        if self.has_lease():
            resource = {"resource_id": self.resource, "id": self.lease["id"]}
            try:
                self._post(self.url, "release_capacity", resource)
            except FAILURES:
                pass  # the lease ends by itself

    def _rate(self, now):
        if now < self.end:
            return self.lease["capacity"]
        return self.safe_capacity if self.safe_capacity >= 0 else float("inf")

    def _run(self):
        while not self.stopped.wait(self._renew()):
            pass

    def _renew(self):
        """Asks the process that answered last, then the other addresses, and follows the master.
        Returns how many seconds to wait before the next call."""
        answered = False
        for url in [self.url] + [url for url in self.urls if url != self.url]:
            for _ in range(REDIRECTS_MAX + 1):
                if not url or self.stopped.is_set():
                    break
                try:
                    wait, url = self._ask(url)
                except FAILURES:
                    break
                answered = True
                if wait is not None:
                    self.backoff = 1.0
                    return wait
        if answered:  # there is no master at present
            return random.uniform(1, 4)
        self.backoff = min(60.0, self.backoff * 2)
        return random.uniform(1, self.backoff)

    def _ask(self, url):
        """Sends one request. Returns how long to wait, or None and the address of the master."""
        item = {"resource_id": self.resource, "wants": self.wants}
        with self.lock:
            sent, end, has = time.monotonic(), self.end, None
            if sent < end:  # what the request claims is what the client may use from now on
                self.lease["capacity"] = min(self.lease["capacity"], self.wants)
                has = dict(self.lease)
                item["has"] = dict(has, expires_in=end - sent)
        answer = self._post(url, "get_capacity", item)
        if "mastership" in answer:
            return None, answer["mastership"].get("http_address")
        with self.lock:
            now = time.monotonic()
            if now - sent > TIMEOUT or (has and now >= end):
                raise TimeoutError("the response came too late")
            self.url = url
            result = answer["response"][0]
            self.safe_capacity = result.get("safe_capacity", self.safe_capacity)
            self.refused = result.get("refused", {}).get("reason")
            if self.refused:  # the last lease stays until its end
                return self._spread(result["refused"]["refresh_interval"]), None
            gets = result["gets"]
            lease = {key: gets[key] for key in ("id", "node", "capacity")}
            wait, new_end = self._spread(gets["refresh_interval"]), sent + gets["expires_in"]
            if has and lease["capacity"] < has["capacity"]:
                wait = 0  # confirm the smaller lease, so that others get the difference
            self.lease, self.end = lease, new_end
            return wait, None

    def _post(self, url, method, resource):
        body = json.dumps({"client_id": self.id, "resource": [resource]}).encode()
        request = urllib.request.Request(f"{url}/v1/{method}", body, self.headers)
        with self.opener.open(request, timeout=TIMEOUT) as response:
            return json.load(response)

    @staticmethod
    def _spread(seconds):
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
