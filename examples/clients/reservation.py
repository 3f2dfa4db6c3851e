"""A client of Doorman for reservations, over HTTP, with nothing but the standard library.

    client = Reservations(["http://127.0.0.1:15050"])
    with client.reserve("llm/tokens", "acme", 4000) as reservation:
        if reservation.granted:
            reservation.cost = ...  # work, and say what it has really cost
    client.close()

If an exception ends the scope, or nobody sets the cost, it costs what was reserved. Copy this file
into your program. A thread sends what reservations have cost. Any thread may call the methods.
Numbers such as (P27) name the rules of doorman_permits.h.
"""
import json
import logging
import os
import queue
import secrets
import socket
import threading
import time
import urllib.error
import urllib.request

HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # without a proxy
REPEAT = 45  # seconds; a server remembers a settlement for a minute (P27)
WAITING_MAX = 10000  # settles that wait; others are lost


class Refused(Exception):
    """The server has read the request, and refuses it. To repeat it is of no use."""


class Reservation:
    """`granted` says whether the work may be done. If not, `refusal` is the answer of the server, or
    None if no server has answered."""

    def __init__(self, client, number, item, granted, refusal):
        self.client, self.number, self.item = client, number, item
        self.granted, self.refusal, self.cost = granted, refusal, item["cost"]

    def settle(self, cost):
        """Says what the work has cost. Does not wait. Later calls have no effect."""
        number, self.number = self.number, None
        if number:
            self.client._settle(number, {**self.item, "cost": cost})

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        self.settle(self.item["cost"] if error else self.cost)


class Reservations:
    """Without a server, reserve() grants if fail_open is true. What it grants is charged later, if a
    server takes it within 5 minutes."""

    def __init__(self, urls, settle_within=60, timeout=1, fail_open=True, headers=()):
        self.urls, self.master, self.fail_open = urls, urls[0], fail_open
        self.settle_within, self.timeout = settle_within, timeout
        self.headers = {"Content-Type": "application/json", **dict(headers)}
        self.id = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"
        self.last, self.lost = 0, 0  # lost: settles that no server has counted
        self.lock, self.waiting = threading.Lock(), queue.Queue(WAITING_MAX)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def reserve(self, resource, key="", cost=1):
        """Charges the most that the work may cost. Returns a Reservation."""
        with self.lock:
            self.last += 1
            number = self.last
        item = {"resource_id": resource, "key": key, "cost": cost}
        permit = {"request_id": number, "settle_within": self.settle_within, "item": [item]}
        answer = self._everywhere("acquire", {"permit": [permit]})
        decision = answer and answer["permit"][0]
        if not decision and not self.fail_open:
            self._settle(number, {**item, "cost": 0})  # a server may have charged it
        granted = decision["decision"] == "GRANTED" if decision else self.fail_open
        settles = granted and (not decision or "reservation" in decision)
        return Reservation(self, number if settles else None, item, granted, decision)

    def close(self):
        """Sends what is left, once, and ends the thread."""
        self.stopped.set()
        self.thread.join()

    def _settle(self, number, item):
        entry = {"request_id": number, "item": [item]}
        try:
            self.waiting.put_nowait((entry, time.monotonic()))
        except queue.Full:
            self._lose(entry)

    def _lose(self, entry):
        self.lost += 1
        logging.warning("doorman: nobody has counted %r", entry)

    def _run(self):
        while not (self.stopped.is_set() and self.waiting.empty()):
            try:
                self._send(*self.waiting.get(timeout=0.1))
            except queue.Empty:
                pass

    def _send(self, entry, since):
        """Sends a settle until a server has answered. It is repeated for less than a server
        remembers it."""
        if time.monotonic() >= since + 300:
            return self._lose(entry)
        end = time.monotonic() + REPEAT
        while True:
            answer = self._everywhere("settle", {"entry": [entry]})
            if answer == {}:
                return self._lose(entry)
            reason = answer["entry"][0].get("reason") if answer else "LEARNING"
            if not reason:
                return None
            later = reason in ("LEARNING", "MOVED")  # another try can succeed
            over = not later or time.monotonic() + self.timeout + 1 >= end
            if over or self.stopped.wait(1):
                return self._lose(entry)

    def _everywhere(self, method, message):
        """Asks the last master, and then all addresses. Returns the answer, {} if it is refused, or
        None."""
        for url in dict.fromkeys([self.master, *self.urls]):
            try:
                return self._post(url, method, message)
            except Refused as error:
                logging.error("doorman: %s: %s", url, error)
                return {}
            except Exception as error:  # of the network, or a response with another content
                logging.warning("doorman: %s: %r", url, error)
        return None

    def _post(self, url, method, message, hops=0):
        """Sends a message, and follows the master."""
        data = json.dumps({"client_id": self.id, **message}).encode()
        request = urllib.request.Request(f"{url}/v1/{method}", data, self.headers)
        try:
            answer = json.load(HTTP.open(request, timeout=self.timeout))
        except urllib.error.HTTPError as error:
            again = error.code >= 500 or error.code in (408, 429)
            raise (OSError if again else Refused)(error.read().decode()) from error
        if "mastership" not in answer:
            self.master = url
            return answer
        master = answer["mastership"].get("http_address", "")
        if not master or hops == 5 or url[:6] == "https:" != master[:6]:
            raise OSError("there is no master")
        return self._post(master, method, message, hops + 1)
