"""A web server on this machine that behaves as badly as a test wants."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class Server:
    """Files by path. A transfer breaks off after as many bytes as `breaks` says, once for each entry."""

    files: dict[str, bytes] = field(default_factory=dict)
    breaks: list[int] = field(default_factory=list)
    ranges: bool = True  # whether it can begin in the middle
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and Range of every request
    url: str = ""


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            span = self.headers.get("Range")
            server.asked.append((self.path, span))
            if self.path not in server.files:
                self.send_error(404)
                return
            content = server.files[self.path]
            start = int(span.removeprefix("bytes=").rstrip("-")) if span and server.ranges else 0
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = start + server.breaks.pop(0) if server.breaks else len(content)
            self.wfile.write(content[start:end])

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        server.url = f"http://127.0.0.1:{listener.server_port}/"
        thread = Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown()
            thread.join()
