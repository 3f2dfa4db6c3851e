"""A client of Doorman for a hold, over HTTP, with nothing but the standard library.

    hold = Hold(["http://127.0.0.1:15050"], "transcode", "acme", max_wait=30)
    if hold.acquire():
        ...  # work; stop when hold.left() <= 0
        hold.release()

Copy this file into your program. A thread renews the hold. Any thread may call the methods.
Numbers such as (H3) name the "Rules for a holder" of docs/protocol.md.
"""
import json
import logging
import os
import random
import secrets
import socket
import threading
import time
import urllib.error
import urllib.request

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # counts suspended time
HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # without a proxy
DRIFT = 1.05


class Refused(Exception):
    """The server has read the request, and refuses it. To repeat it is of no use."""


class Hold:
    """on_gone is called once, in the thread that renews, if the hold cannot be renewed. The units
    may still be used until left() is 0."""

    def __init__(self, urls, resource, key="", units=1, time_to_live=None, max_wait=0,
                 on_gone=lambda: None, headers=()):
        self.urls, self.max_wait, self.on_gone, self.master = urls, max_wait, on_gone, urls[0]
        self.item = {"resource_id": resource, "key": key, "amount": units}
        self.options = {"time_to_live": time_to_live} if time_to_live else {}
        self.headers = {"Content-Type": "application/json", **dict(headers)}
        name = f"{socket.gethostname()}:{os.getpid()}"
        self.client = f"{name}:{secrets.token_hex(8)}"  # (H1)
        self.request, self.id, self.end, self.refusal = 0, None, 0, None
        self.lock, self.sending = threading.Lock(), threading.Lock()
        self.stopped = threading.Event()
        self.stopped.set()

    def left(self):
        """Returns the seconds to the end of the hold. At 0 or less the units may not be used."""
        return 0 if self.stopped.is_set() else self.end - self._now()

    def acquire(self):
        """Waits up to max_wait. Returns False if the hold was refused, or if release() was called.
        Then `refusal` is the answer of the server, or None."""
        self.request, self.id, self.end, self.refusal = self.request + 1, None, 0, None
        self.stopped, permit = threading.Event(), None
        give_up = self._now() + self.max_wait
        while not (self.stopped.is_set() or (permit := self._ask(give_up))):
            refused = permit == {}
            if refused or self._now() >= give_up or self.stopped.wait(random.uniform(0.5, 1)):
                break
        with self.lock:
            if not self.stopped.is_set() and self.left() > 0:
                threading.Thread(target=self._run, args=(self.stopped,), daemon=True).start()
                return True
        self.refusal = permit or None
        if not permit or self.id:
            self.release()  # the server may have granted the hold meanwhile (H6)
        self.stopped.set()
        return False

    def release(self):
        """Gives the units back. Stop using them before. Also ends an acquire() that waits."""
        with self.lock:
            self.stopped.set()
            entry = {"id": self.id} if self.id else {"request_id": max(1, self.request)}
        with self.sending:  # after a renewal that is under way
            self._everywhere("release", {"entry": [entry]}, 5)  # else the hold ends by itself

    def _now(self):
        return time.clock_gettime(CLOCK)

    def _ask(self, give_up):
        """Asks for the hold. Returns the decision, or None if no server has answered."""
        wait = max(0, give_up - self._now())
        item = {name: self.item[name] for name in ("resource_id", "key")}
        permit = {"request_id": self.request, "max_wait": wait, **self.options,
                  "item": [{**item, "cost": self.item["amount"]}]}
        sent, answer = self._everywhere("acquire", {"permit": [permit]}, wait + 5)  # (H2)
        hold = answer and answer["permit"][0].get("hold")
        if hold:
            self.id, self.life = hold["id"], hold["expires_in"]
            self.end = sent + hold["waited"] / DRIFT + self.life  # (H3)
        return answer and answer["permit"][0]

    def _run(self, stopped):
        wait = self.life / 3  # (H4)
        while not stopped.wait(min(wait, max(0, self.left()))):
            entry = {"id": self.id, "item": [self.item]}  # a new master needs the item (H5)
            timeout = min(5, max(0.1, self.left() / 4))
            with self.sending:
                sent, answer = self._everywhere("renew", {"entry": [entry]}, timeout)
            if answer and answer["entry"][0].get("reason"):
                answer = None  # MOVED: another node will know the hold
            with self.lock:
                if stopped.is_set():
                    return
                result = answer["entry"][0] if answer else {}
                less = answer and result.get("amount", [0])[0] < self.item["amount"]
                if self.left() > 0 and answer and not less:
                    self.end = max(self.end, sent + result["expires_in"])
            if self.left() <= 0 or less or answer == {}:  # gone (H7), or refused
                return self.on_gone()
            wait = self.life / 3 if answer else self.life / 10 * random.uniform(0.5, 1)

    def _everywhere(self, method, message, timeout):
        """Asks the last master, and then all addresses. Returns when the request was sent, and the
        answer, {} if the request is refused, or None."""
        for url in dict.fromkeys([self.master, *self.urls]):
            try:
                return self._post(url, method, message, timeout)
            except Refused as error:
                logging.error("doorman: %s: %s", url, error)
                return 0, {}
            except Exception as error:  # of the network, or a response with another content
                logging.warning("doorman: %s: %r", url, error)
        return 0, None

    def _post(self, url, method, message, timeout, hops=0):
        """Sends a message, and follows the master."""
        data = json.dumps({"client_id": self.client, **message}).encode()
        request = urllib.request.Request(f"{url}/v1/{method}", data, self.headers)
        sent = self._now()
        try:
            answer = json.load(HTTP.open(request, timeout=timeout))
        except urllib.error.HTTPError as error:
            again = error.code >= 500 or error.code in (408, 429)
            raise (OSError if again else Refused)(error.read().decode()) from error
        if "mastership" not in answer:
            self.master = url
            return sent, answer
        master = answer["mastership"].get("http_address", "")
        if not master or hops == 5 or url[:6] == "https:" != master[:6]:
            raise OSError("there is no master")
        return self._post(master, method, message, timeout, hops + 1)
