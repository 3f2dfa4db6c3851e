"""Helpers of the tests: a real server, and a server whose answers a test writes."""
from __future__ import annotations

import contextlib
import http.server
import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("DOORMAN_SERVER", str(ROOT / "build" / "doorman_server"))
WAIT = 60.0  # seconds; the longest time for something to happen on a busy machine

CONFIG = {"unmatched": "reject", "resources": [
    {"identifier_glob": "db/*", "capacity": 100, "safe_capacity": 10, "algorithm": {
        "kind": "FAIR_SHARE", "lease_length": 60, "refresh_interval": 1,
        "learning_mode_duration": 0}},
    {"identifier_glob": "conn", "capacity": 3, "algorithm": {
        "kind": "FAIR_SHARE", "lease_length": 60, "refresh_interval": 15,
        "learning_mode_duration": 0}},
    {"identifier_glob": "login", "limits": [
        {"name": "per-user", "kind": "TOKEN_BUCKET", "rate": 0.001, "size": 5}]},
    {"identifier_glob": "llm", "limits": [
        {"name": "tokens", "kind": "FIXED_WINDOW", "limit": 10, "window": 100000000}]},
    {"identifier_glob": "transcode", "limits": [
        {"name": "slots", "kind": "CONCURRENCY", "per": "resource", "limit": 2,
         "time_to_live": 30, "queue": 100, "max_wait": 60, "on_restart": "full"}]}]}


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """Waits until a condition is true, and returns its value."""
    end = time.monotonic() + WAIT
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"this did not happen within {WAIT:g} s: {what}")
        time.sleep(0.02)


class Server:
    """A process of doorman_server in a temporary folder. `url` is its address."""

    def __init__(self, *flags: str, config: Optional[Dict[str, Any]] = None,
                 files: Optional[Dict[str, str]] = None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        for name, text in {"config.json": json.dumps(config or CONFIG), **(files or {})}.items():
            path = pathlib.Path(self.folder.name, name)
            path.write_text(text, "utf-8")
            path.chmod(0o600)
        self.log = open(pathlib.Path(self.folder.name, "log"), "w+", encoding="utf-8")
        self.flags = flags
        self._start("127.0.0.1:0")
        self.url = eventually(self._find_url, "the server listens")

    def _start(self, http: str) -> None:
        self.process = subprocess.Popen(
            [PROGRAM, "--config", "config.json", "--listen", "tcp://127.0.0.1:0", "--http", http,
             "--node", "eu", *self.flags],
            cwd=self.folder.name, stdout=self.log, stderr=subprocess.STDOUT)

    def crash(self) -> None:
        """Kills the process."""
        self.process.kill()
        self.process.wait(WAIT)

    def start_again(self) -> None:
        """Starts the process again, at the same address."""
        self._start(self.url.partition("://")[2])

    def _find_url(self) -> Optional[str]:
        text = self.text()
        if self.process.poll() is not None:
            raise AssertionError(f"the server has ended: {text}")
        found = re.search(r"http=(https?://[^\s/]+:\d+)", text)
        return found.group(1) if found else None

    def text(self) -> str:
        """Returns what the server has logged."""
        return pathlib.Path(self.folder.name, "log").read_text("utf-8")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(WAIT)
        self.log.close()
        self.folder.cleanup()


Answer = Tuple[int, Any]


class FakeServer:
    """A server whose answers come from a function of the method, the message and the headers. An
    answer is a status and a body: an object, or bytes. None: the connection is closed. After the
    status 100 the function is called again."""

    def __init__(self, answer: Callable[[str, Any, Any], Optional[Answer]]) -> None:
        self.seen: List[Tuple[str, Any, Dict[str, str]]] = []
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                message = json.loads(self.rfile.read(size))
                method = self.path.rpartition("/")[2]
                fake.seen.append((method, message, dict(self.headers)))
                reply = answer(method, message, self.headers)
                while reply and reply[0] == 100:
                    self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    reply = answer(method, message, self.headers)
                if reply is None:
                    self.close_connection = True
                    return
                status, body = reply
                text = body if isinstance(body, bytes) else json.dumps(body).encode()
                with contextlib.suppress(ConnectionError):  # a client can have given up
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
