"""A web server on 127.0.0.1 for tests of downloads, which fails in the ways that mirrors do.

    with serve(folder, **{"corpus.tgz": "truncated-once"}) as server:
        fetch(f"{server.url}/corpus.tgz")
    assert server.ranges("corpus.tgz") == [None, "bytes=5000-"]

Paths are relative to the folder, as in the address; "*" stands for all others:

    missing         404
    page            status 200 and a web page that says the file has moved
    redirect        sent on once, to the same path with a query
    truncated-once  the first answer breaks off in the middle of the file, the next ones do not
    truncated       every answer breaks off in the middle of the file
    corrupt         a byte in the middle is another
    no-range        the whole file whatever range is asked for
    trickle         half of the file, then a byte now and then
    hang            no answer at all

`server.release.set()` breaks off all that hangs or trickles.
"""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

PAGE = b"<!DOCTYPE html>\n<html><body><h1>This file has moved</h1></body></html>\n"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        path = unquote(urlsplit(self.path).path).lstrip("/")
        asked = self.headers["Range"]
        first = not self.server.ranges(path)
        self.server.requests.append((path, asked))
        mode = self.server.behaviour.get(path) or self.server.behaviour.get("*")
        file = Path(self.server.folder, path)
        if mode == "hang":
            self.server.release.wait()
        elif mode == "page":
            self.answer(200, PAGE)
        elif mode == "redirect" and "?" not in self.path:
            self.answer(302, b"", {"Location": f"{self.path}?again"})
        elif mode == "missing" or not file.is_file():
            self.answer(404, b"")
        else:
            self.send(mode, file.read_bytes(), asked, first)

    def send(self, mode, content, asked, first):
        start, size = 0, len(content)
        middle = size // 2
        if mode == "corrupt":
            content = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
        if asked and mode != "no-range":
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= size:
                return self.answer(416, b"", {"Content-Range": f"bytes */{size}"})
        headers = {"Content-Range": f"bytes {start}-{size - 1}/{size}"} if start else {}
        ends = mode in ("truncated", "trickle") or (mode == "truncated-once" and first)
        body = content[start : middle if ends else size]
        self.answer(206 if start else 200, body, headers, length=size - start)
        for byte in content[max(start, middle) :] if mode == "trickle" else b"":
            if self.server.release.wait(0.2):
                break
            self.wfile.write(bytes([byte]))
            self.wfile.flush()

    def answer(self, status, body, headers=None, length=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    """`behaviour` may be changed meanwhile; `requests` holds (path, Range header or None)."""

    daemon_threads = True

    def __init__(self, folder, behaviour):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.behaviour = folder, behaviour
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests = []
        self.release = threading.Event()

    def ranges(self, path):
        """The Range headers of the requests for a path, None where a request had none."""
        return [asked for requested, asked in self.requests if requested == path]

    def handle_error(self, request, client_address):
        """Clients that give up are nothing to report."""


@contextmanager
def serve(folder, **behaviour):
    """Serve the folder's files until the end of the `with` block."""
    with Server(folder, behaviour) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server
        finally:
            server.release.set()
            server.shutdown()
