"""A client of Doorman for one rate, over HTTP, with nothing but the standard library.

    client = Client(["http://127.0.0.1:15050"], "db/orders", wants=50)
    if client.try_use():
        ...  # do one unit of work
    client.close()

Copy this file into your program. A thread renews the lease. Any thread may call the methods.
Numbers such as (4) name the "Rules for a client" of docs/protocol.md.
"""
import json
import logging
import os
import random
import socket
import threading
import time
import urllib.request

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # counts suspended time (1)
HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # without a proxy


class Client:
    """wants and safe_capacity are units per second. Without a lease the client uses the safe
    capacity, which a server can change. -1 means unlimited."""

    def __init__(self, urls, resource, wants, safe_capacity=0, headers=()):
        self.urls, self.resource, self.wants, self.safe = urls, resource, wants, safe_capacity
        self.headers = {"Content-Type": "application/json", **dict(headers)}
        self.id = f"{socket.gethostname()}:{os.getpid()}:{random.getrandbits(64):x}"
        self.lease, self.end, self.cuts = None, 0, 0
        self.master, self.pause, self.interval = urls[0], 2, 60
        self.paid = self._now()  # the rate has paid for the units used until then
        self.lock, self.stopped = threading.Lock(), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def left(self):
        """Returns the seconds to the end of the lease. At 0 or less there is no lease."""
        return self.end - self._now()

    def rate(self):
        """Returns how many units the client may use in a second, now."""
        capacity = self.lease["capacity"] if self.left() > 0 else self.safe  # (4) (8)
        return capacity if capacity >= 0 else 1e15

    def try_use(self, n=1):
        """Takes n units and returns True, or returns False if the rate does not allow them now. The
        rate saves up to 0.1 s, or the time of these n units if that is longer."""
        with self.lock:
            cost = n / (self.rate() or 1e-15)  # in seconds, as what is saved
            saved = min(self._saved(), max(0.1, cost))
            if saved < cost or self.stopped.is_set():
                return False
            self.paid = self._now() - saved + cost
            return True

    def close(self):
        """Stops using the lease, and gives it back. If this fails, the lease ends by itself."""
        self.stopped.set()
        self.thread.join()  # after the response in flight (9)
        if self.left() > 0:
            self._try(self._post, self.master, "release_capacity", {"id": self.lease["id"]})

    def _now(self):
        return time.clock_gettime(CLOCK)

    def _saved(self):
        return self._now() - max(self.paid, self.end if self.left() <= 0 else 0)

    def _run(self):
        while not self.stopped.wait(self._renew()):
            pass

    def _renew(self):
        """Asks the last master, and then all addresses. Returns the seconds to wait."""
        for url in dict.fromkeys([self.master, *self.urls]):
            if not self.stopped.is_set() and (wait := self._try(self._ask, url)) is not None:
                return wait
        left = self.left()
        longest = min(self.pause, self.interval, left / 4 if left > 0 else 60)
        self.pause = min(2 * self.pause, 60)
        return random.uniform(1, max(1, longest))  # (6)

    def _try(self, call, url, *arguments):
        try:
            return call(url, *arguments)
        except Exception as error:  # of the network, or a response with another content
            logging.warning("doorman: %s: %r", url, error)

    def _ask(self, url, hops=0):
        """Asks for a lease, and follows the master. Returns the seconds to wait."""
        entry, sent, left, has = {"wants": self.wants}, self._now(), self.left(), self.lease
        if left > 0:
            entry["has"] = {**has, "expires_in": left}  # (3)
        answer = self._post(url, "get_capacity", entry)
        if "mastership" in answer:  # (7)
            master = answer["mastership"].get("http_address", "")
            if not master or hops == 5 or url[:6] == "https:" != master[:6]:
                self.pause = min(self.pause, 4)
                raise OSError("there is no master")
            return self._ask(master, hops + 1)
        if self._now() - sent > 5 or left > 0 >= self.left():
            raise TimeoutError("the response came too late")  # (2)
        self.master, self.pause, result = url, 2, answer["response"][0]
        gets = result.get("gets")
        with self.lock:
            units = self._saved() * self.rate()
            self.safe = result.get("safe_capacity", self.safe)
            if gets:
                self.lease, self.end = gets, sent + gets["expires_in"]
            self.paid = self._now() - units / (self.rate() or 1e15)  # the same units are saved
        if not gets:  # the lease stays until its end
            return result["refused"]["refresh_interval"] * random.uniform(1, 1.05)
        self.interval = min(gets["refresh_interval"], max(1, gets["expires_in"] / 2))  # (5)
        self.cuts = self.cuts + 1 if left > 0 and gets["capacity"] < has["capacity"] else 0
        if self.cuts:  # confirm the smaller lease, so that others get the difference (4)
            return min(self.cuts - 1, 1)
        return self.interval * random.uniform(1, 1.05)

    def _post(self, url, method, entry):
        message = {"client_id": self.id, "resource": [{"resource_id": self.resource, **entry}]}
        data = json.dumps(message).encode()
        request = urllib.request.Request(f"{url}/v1/{method}", data, self.headers)
        try:
            return json.load(HTTP.open(request, timeout=5))
        except urllib.error.HTTPError as error:
            raise OSError(error.read().decode()) from error
