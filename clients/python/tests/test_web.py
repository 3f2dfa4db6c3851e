"""The middleware for WSGI and ASGI, with a server whose answers are known."""
import asyncio
import os
import signal
import threading
import unittest
import urllib.error
import urllib.request
from typing import Any, Dict, List
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.validate import validator

from doorman import Acquired, AsyncClient, Client
from doorman import asgi, wsgi
from doorman._web import headers_of, key_of
from server import WAIT, FakeServer

GRANTED = {"permit": [{"decision": "GRANTED", "item": [
    {"granted": 1, "limit": "per-user", "remaining": 4.5, "reset_after": 9.2, "limits": [
        {"name": "per-user", "limit": 5, "used": 0.5, "remaining": 4.5, "reset_after": 9.2,
         "window": 50}]}]}]}
REFUSED = {"permit": [{"decision": "REFUSED", "resource_id": "login", "limit": "per-user",
                       "reason": "RATE", "retry_after": 3.1, "item": [{"limits": [
                           {"name": "per-user", "limit": 5, "used": 5, "remaining": 0,
                            "reset_after": 50, "window": 50, "refused": True}]}]}]}


def answer(_method: str, message: Any, _headers: Any) -> Any:
    key = message["permit"][0]["item"][0].get("key")
    return 200, REFUSED if key == "bob" else GRANTED


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


class Web(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = FakeServer(answer)

    def tearDown(self) -> None:
        self.fake.stop()

    def test_wsgi(self) -> None:
        def hello(environ: Dict[str, Any], start_response: Any) -> List[bytes]:
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [f"{environ.get('doorman.decision') is not None}".encode()]

        with Client(self.fake.url) as client:
            limited = wsgi.RateLimit(
                hello, client, lambda env: None if env["PATH_INFO"] == "/free" else "login",
                key=lambda env: env["QUERY_STRING"], timeout=WAIT)
            with make_server("127.0.0.1", 0, validator(limited), handler_class=Quiet) as web:
                thread = threading.Thread(target=web.serve_forever, args=(0.01,))
                thread.start()
                try:
                    self.ask(f"http://127.0.0.1:{web.server_port}")
                finally:
                    web.shutdown()
                    thread.join()

    def ask(self, url: str) -> None:
        with urllib.request.urlopen(f"{url}/?alice") as response:
            self.assertEqual(response.read(), b"True")
            self.assertEqual(response.headers["RateLimit-Policy"], '"per-user";q=5;w=50')
            self.assertEqual(response.headers["RateLimit"], '"per-user";r=4;t=10')
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/?bob")
        with refused.exception as response:
            self.assertEqual(response.status, 429)
            self.assertEqual(response.headers["Retry-After"], "4")
            self.assertEqual(response.headers["RateLimit"], '"per-user";r=0;t=4')
            self.assertEqual(response.headers["Cache-Control"], "no-store")
            self.assertIn(b'"reason": "RATE"', response.read())
        with urllib.request.urlopen(f"{url}/free") as response:
            self.assertEqual(response.read(), b"False")
            self.assertIsNone(response.headers["RateLimit"])

    def test_asgi(self) -> None:
        async def hello(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"hello"})

        async def run() -> None:
            async with AsyncClient(self.fake.url) as client:
                limited = asgi.RateLimit(hello, lambda: client, "login",
                                         key=lambda scope: scope["user"], timeout=WAIT)
                start, body = await self.call(limited, {"type": "http", "user": "alice"})
                self.assertEqual((start["status"], body["body"]), (200, b"hello"))
                self.assertIn((b"ratelimit", b'"per-user";r=4;t=10'), start["headers"])
                start, body = await self.call(limited, {"type": "http", "user": "bob"})
                self.assertEqual(start["status"], 429)
                self.assertIn((b"retry-after", b"4"), start["headers"])
                start, body = await self.call(limited, {"type": "lifespan"})
                self.assertEqual(start["headers"], [])

        asyncio.run(run())

    def test_a_key_that_a_permit_cannot_have_is_limited_too(self) -> None:
        async def hello(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})

        async def run(key: str) -> None:
            async with AsyncClient(self.fake.url) as client:
                limited = asgi.RateLimit(hello, client, "login", key=lambda scope: scope["user"],
                                         timeout=WAIT)
                await self.call(limited, {"type": "http", "user": key})

        long, control = "a" * 300, "tab\there"
        for key in (long, control):
            asyncio.run(run(key))
            with Client(self.fake.url) as client:
                limited = wsgi.RateLimit(lambda environ, start: [start("200 OK", [])], client,
                                         "login", key=lambda environ: key, timeout=WAIT)
                limited({}, lambda *_: b"")
        keys = [message["permit"][0]["item"][0]["key"] for _, message, _ in self.fake.seen]
        self.assertEqual((keys[0], keys[2]), (keys[1], keys[3]))
        self.assertEqual(len(set(keys)), 2)
        self.assertTrue(all(key.startswith("sha256:") for key in keys))

    def test_a_refusal_that_is_repeated_has_the_same_headers(self) -> None:
        refused = {**REFUSED["permit"][0], "valid_for": 3}
        fake = FakeServer(lambda *_: (200, {"permit": [refused]}))
        names = ("RateLimit-Policy", "RateLimit", "Retry-After")
        seen: List[Any] = []
        try:
            with Client(fake.url) as client:
                limited = wsgi.RateLimit(lambda environ, start: [], client, "login", timeout=WAIT)
                for _ in range(2):
                    limited({}, lambda status, headers: seen.append((status, dict(headers))))
                self.assertEqual(client.counts()["refused_locally"], 1)
        finally:
            fake.stop()
        expected = ('"per-user";q=5;w=50', '"per-user";r=0;t=4', "4")
        for status, headers in seen:
            self.assertEqual(status[:3], "429")
            self.assertEqual(tuple(headers.get(name) for name in names), expected)

    def test_requests_without_a_key_share_one(self) -> None:
        async def hello(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})

        async def run() -> None:
            async with AsyncClient(self.fake.url) as client:
                limited = asgi.RateLimit(hello, client, "login", key=lambda scope: None,
                                         timeout=WAIT)
                await self.call(limited, {"type": "http"})

        asyncio.run(run())
        with Client(self.fake.url) as client:
            limited = wsgi.RateLimit(lambda environ, start: [start("200 OK", [])], client, "login",
                                     key=lambda environ: environ.get("HTTP_X_API_KEY"),
                                     timeout=WAIT)
            limited({}, lambda *_: b"")
        items = [message["permit"][0]["item"][0] for _, message, _ in self.fake.seen]
        self.assertEqual(items, 2 * [{"resource_id": "login", "cost": 1}])

    def test_a_key_has_the_same_hash_in_all_languages(self) -> None:
        # The packages for JavaScript and Go have the same example.
        self.assertEqual(
            key_of("a\tb\ud800c\U0001f600"),
            "sha256:e0030ff6a4bf6f8b788e9e7459b0fd956eeb6776873d5c78f9158fcd8c178071",
        )

    def test_an_application_that_is_loaded_before_a_fork_makes_a_client_in_each_process(
            self) -> None:
        made: List[Client] = []

        def make() -> Client:
            made.append(Client(self.fake.url))
            return made[-1]

        def ask() -> str:
            environ: Dict[str, Any] = {}
            limited(environ, lambda *_: b"")
            return str(environ["doorman.decision"].by)

        limited = wsgi.RateLimit(lambda environ, start: [start("200 OK", [])], make, "login",
                                 timeout=WAIT)
        self.assertEqual([ask(), ask(), len(made)], ["server", "server", 1])
        child = os.fork()
        if child == 0:
            signal.alarm(int(WAIT))
            os._exit(0 if (ask(), ask(), len(made)) == ("server", "server", 2) else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        made[0].close()

    async def call(self, application: Any, scope: Dict[str, Any]) -> List[Any]:
        sent: List[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await application(scope, None, send)
        return sent

    def test_names_of_limits_are_escaped(self) -> None:
        decision = Acquired(True, limit='a"\\é', quota=5, remaining=2)
        self.assertEqual(headers_of(decision)[0], ("RateLimit-Policy", '"a\\"\\\\%C3%A9";q=5'))
        self.assertEqual(headers_of(Acquired(True, by="fallback")), [])
        for retry_after, header in ((0, "1"), (1.5, "2")):
            self.assertEqual(headers_of(Acquired(False, retry_after=retry_after)),
                             [("Retry-After", header)])
        with self.assertRaisesRegex(ValueError, "refuse_status"):
            asgi.RateLimit(None, None, "x", refuse_status=200)  # type: ignore[arg-type]


if __name__ == "__main__":
    unittest.main()
