"""A client of Doorman for one rate, over HTTP, with nothing but the standard library.

    client = Client(["http://127.0.0.1:15050"], "db/orders", wants=50)
    if client.try_use():
        ...  # do one unit of work
    client.close()

Copy this file into your program. Numbers such as (4) name the "Rules for a client" of
examples/protocol.md. A thread renews the lease. Every method may be called from any thread.
"""

import json
import os
import random
import signal
import socket
import sys
import threading
import time
import urllib.request

BURST = 0.1  # seconds of the rate that an idle client saves
TIMEOUT = 5.0  # seconds for one request
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # it counts suspended time (1)


def clock():
    return time.clock_gettime(CLOCK)


class Client:
    def __init__(self, urls, resource, wants, safe_capacity=0.0, headers=None):
        """wants and safe_capacity are rates, in units per second. Without a lease the client uses
        the safe capacity, which a server can change; -1 means unlimited."""
        self.urls, self.resource, self.wants = list(urls), resource, wants
        self.id = f"{socket.gethostname()}:{os.getpid()}:{random.getrandbits(64):x}"
        self.headers = {"Content-Type": "application/json", **(headers or {})}
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.lock = threading.Lock()  # guards the next two lines
        self.lease, self.end, self.was_cut = None, 0.0, False
        self.safe_capacity, self.paid_until = safe_capacity, clock()  # nothing is saved yet
        self.url, self.next_url, self.tried, self.rounds = self.urls[0], 1, 0, 0
        self.most = self.interval = 60  # bounds of a pause in seconds (6)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def left(self):
        """Returns the seconds to the end of the lease; 0 or less: there is none."""
        return self.end - clock()

    def rate(self):
        """Returns how many units the client may use in a second, now."""
        if self.left() > 0:
            return self.lease["capacity"]  # also if it is 0 (4)
        return self.safe_capacity if self.safe_capacity >= 0 else float("inf")  # (8)

    def try_use(self, n=1):
        """Takes n units and returns True, or returns False if the rate does not allow them now. The
        rate has paid up to paid_until. The time since then is saved, but at most BURST."""
        with self.lock:
            now, rate = clock(), self.rate()
            if self.stopped.is_set() or rate <= 0:
                return False
            cost = n / rate
            paid_until = max(self.paid_until, now - max(BURST, cost)) + cost
            if paid_until <= now:
                self.paid_until = paid_until
            return paid_until <= now

    def close(self):
        """Stops using the lease, and gives it back. If this fails, the lease ends by itself."""
        self.stopped.set()
        self.thread.join()  # after the response in flight (9)
        if self.left() > 0:
            try:
                self._post("release_capacity", {"id": self.lease["id"]})
            except Exception:
                pass

    def _run(self):
        wait = 0
        while not self.stopped.wait(wait):
            try:
                wait = self._ask()
                self.tried, self.rounds, self.most = 0, 0, 60
            except Exception as failure:  # of the network, or a response with another content
                print(f"doorman: {self.url}: {failure!r}", file=sys.stderr)
                wait = self._fail()

    def _fail(self):
        """Goes to the next address. Returns how long to wait: only after all have failed (6)."""
        self.url = self.urls[self.next_url % len(self.urls)]
        self.next_url, self.tried = self.next_url + 1, self.tried + 1
        if self.tried < len(self.urls):
            return 0
        self.rounds = min(self.rounds + 1, 6)
        bound = min(2**self.rounds, self.most, self.interval)
        wait = random.uniform(1, max(1, bound))
        self.tried, self.most = 0, 60
        return max(1, min(wait, self.left() / 4)) if self.left() > 0 else wait

    def _ask(self, hops=0):
        """Sends a request, and follows the master. Returns how many seconds to wait."""
        item, sent, left = {"wants": self.wants}, clock(), self.left()
        if left > 0:
            item["has"] = dict(self.lease, expires_in=left)  # (3)
        answer = self._post("get_capacity", item)
        if "mastership" in answer:  # (7)
            master = answer["mastership"].get("http_address", "")
            if not master or hops == 5 or self.url[:6] == "https:" != master[:6]:
                self.most = 4
                raise OSError("there is no master")
            self.url = master
            return self._ask(hops + 1)
        result = answer["response"][0]
        if clock() - sent > TIMEOUT:
            raise TimeoutError("the response came too late")
        with self.lock:
            if left > 0 >= self.left():
                return 0  # ask again without the lease (2)
            self.safe_capacity = result.get("safe_capacity", self.safe_capacity)
            if "refused" in result:  # the last lease stays until its end
                return result["refused"]["refresh_interval"] * random.uniform(1, 1.05)
            gets, was_cut = result["gets"], self.was_cut
            self.lease = {key: gets[key] for key in ("id", "node", "capacity")}
            self.end = sent + gets["expires_in"]
        self.interval = min(gets["refresh_interval"], max(1, gets["expires_in"] / 2))  # (5)
        self.was_cut = left > 0 and gets["capacity"] < item["has"]["capacity"]
        if self.was_cut:  # confirm the smaller lease, so that others get the difference (4)
            return 1 if was_cut else 0
        return self.interval * random.uniform(1, 1.05)

    def _post(self, method, item):
        item["resource_id"] = self.resource
        body = json.dumps({"client_id": self.id, "resource": [item]}).encode()
        request = urllib.request.Request(f"{self.url}/v1/{method}", body, self.headers)
        with self.opener.open(request, timeout=TIMEOUT) as response:
            return json.load(response)


def main(urls, resource, wants):
    """Uses as much as the server allows. Ten times a second, prints the time, the units that were
    used since the last line, the rate, and whether the rate is a lease."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    client = Client(urls.split(","), resource, float(wants))
    used, line_due = 0, time.time() + 0.1
    try:
        while True:
            if client.try_use():
                used += 1  # here is the work
            else:
                time.sleep(0.005)
            if time.time() >= line_due:
                source = "lease" if client.left() > 0 else "fallback"
                print(f"{time.time():.3f} {used} {client.rate():.3f} {source}", flush=True)
                used, line_due = 0, time.time() + 0.1
    finally:
        client.close()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("Usage: doorman.py URL[,URL...] RESOURCE WANTS")
    main(*sys.argv[1:])
