# SPDX-License-Identifier: Apache-2.0
"""A bucket of S3 in this process, as much of it as obstore asks for: objects, ranges, lists,
uploads in parts; and faults in what it answers."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

import obstore.store


# How a GET or HEAD may be answered wrongly: with an error, as if there were nothing, by a
# connection that ends in the middle, too late, with a bit that is not so, as before the last change
# of the object or of the list, and with a list that lacks its end.
FAULTS = ("500", "503", "404", "cut", "late", "flip", "old", "torn")


class Bucket:
    """`refuse(key, part)`: whether to answer an upload with 403; `part`: its number, or 0 when it
    is the whole object. `fault(key)`: one of FAULTS, for a GET or HEAD; "": none. The key of a list
    is its prefix and "*"."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}  # that are under way
        self.received: list[tuple[str, int, int]] = []  # (key, part or 0, bytes)
        self.refuse: Callable[[str, int], bool] = lambda key, part: False
        self.fault: Callable[[str], str] = lambda key: ""
        self.asked: list[tuple[str, int]] = []  # GETs: (key, bytes)
        self.old: dict[str, bytes | None] = {}  # before the last change of each object
        self.old_keys: set[str] = set()  # before the last change of any
        self.url = ""

    def store(self) -> obstore.store.S3Store:
        return obstore.store.S3Store(
            "bucket", endpoint=self.url, region="x", access_key_id="x", secret_access_key="x",
            virtual_hosted_style_request=False, client_options={"allow_http": True})

    @property
    def options(self) -> dict[str, Any]:
        """For `storage_options`, with the URL s3://bucket/…; a failure is not tried again."""
        return {"endpoint": self.url, "region": "x", "access_key_id": "x", "secret_access_key": "x",
                "virtual_hosted_style_request": False, "allow_http": True, "timeout": "2s",
                "retry_config": {"max_retries": 0}}

    def _change(self, key: str, data: bytes | None) -> None:
        self.old[key] = self.objects.get(key)
        self.old_keys = set(self.objects)
        if data is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = data

    def delete(self, key: str) -> None:
        with self.lock:
            self._change(key, None)

    def put(self, key: str, query: dict[str, str], body: bytes) -> bool:
        part = int(query.get("partNumber", 0))
        with self.lock:
            if self.refuse(key, part):
                return False
            self.received.append((key, part, len(body)))
            if part:
                self.uploads[query["uploadId"]][part] = body
            else:
                self._change(key, body)
        return True

    def post(self, key: str, query: dict[str, str], body: bytes) -> str:
        with self.lock:
            if "uploads" in query:
                self.uploads[upload := f"upload-{len(self.received)}-{key}"] = {}
                return f"<InitiateMultipartUploadResult><UploadId>{escape(upload)}</UploadId>" \
                       "</InitiateMultipartUploadResult>"
            if "uploadId" in query:
                parts = self.uploads.pop(query["uploadId"])
                self._change(key, b"".join(parts[number] for number in sorted(parts)))
                return "<CompleteMultipartUploadResult><ETag>x</ETag>" \
                       "</CompleteMultipartUploadResult>"
            gone = re.findall(r"<Key>.*?</Key>", body.decode())
            for each in gone:
                self._change(unescape(each[len("<Key>"):-len("</Key>")]), None)
            return f"<DeleteResult><Deleted>{''.join(gone)}</Deleted></DeleteResult>"

    def list(self, prefix: str, fault: str) -> str:
        with self.lock:
            keys = sorted(key for key in (self.old_keys if fault == "old" else self.objects)
                          if key.startswith(prefix))
            found = {key: len(self.objects.get(key) or b"")
                     for key in (keys[:len(keys) // 2] if fault == "torn" else keys)}
        contents = "".join(f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>x</ETag>"
                           "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                           for key, size in sorted(found.items()))
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # the head and the body are sent apart
    bucket: Bucket

    def log_message(self, format: str, *args: object) -> None: ...

    def _asked(self) -> tuple[str, dict[str, str], bytes]:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in
                 parse_qs(url.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return unquote(url.path.removeprefix("/bucket").lstrip("/")), query, body

    def _answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), "ETag": '"x"',
                            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        self._answer(200 if self.bucket.put(*self._asked()) else 403)

    def do_POST(self) -> None:
        self._answer(200, self.bucket.post(*self._asked()).encode())

    def do_DELETE(self) -> None:
        key, query, _ = self._asked()
        with self.bucket.lock:
            if "uploadId" in query:
                self.bucket.uploads.pop(query["uploadId"], None)
            else:
                self.bucket._change(key, None)
        self._answer(204)

    def _fail(self, fault: str, code: int, body: bytes, **headers: str) -> None:
        """Answers wrongly."""
        if fault == "late":
            time.sleep(3)  # the client waits 2 s
        if fault == "cut":
            self.send_response(code)
            self.send_header("Content-Length", str(len(body) + 1))
            self.end_headers()
            self.wfile.write(body[:len(body) // 2])
            self.close_connection = True
            return
        if fault == "flip" and body:
            place = len(body) // 3
            body = body[:place] + bytes([body[place] ^ 4]) + body[place + 1:]
        self._answer(code, body, **headers)

    def do_GET(self) -> None:
        key, query, _ = self._asked()
        is_list = "list-type" in query
        fault = self.bucket.fault(query.get("prefix", "") + "*" if is_list else key)
        if fault in ("500", "503", "404"):
            self._answer(int(fault))
            return
        if is_list:
            self._fail(fault, 200, self.bucket.list(query.get("prefix", ""), fault).encode())
            return
        with self.bucket.lock:
            data = (self.bucket.old if fault == "old" else self.bucket.objects).get(key)
        if data is None:
            self._answer(404)
        elif wanted := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            start, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
            with self.bucket.lock:
                self.bucket.asked.append((key, last + 1 - start))
            self._fail(fault, 206, data[start:last + 1],
                       **{"Content-Range": f"bytes {start}-{last}/{len(data)}"})
        else:
            self._fail(fault, 200, data)

    do_HEAD = do_GET


class _Server(ThreadingHTTPServer):
    def __init__(self, port: int, bucket: Bucket) -> None:
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), type("Handler", (_Handler,), {"bucket": bucket}))

    def handle_error(self, request: Any, client_address: Any) -> None: ...  # the client went away

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def server_close(self) -> None:
        super().server_close()
        for each in self._connections:  # clients keep them for their next requests
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serving(bucket: Bucket | None = None) -> Iterator[Bucket]:
    """Serves an empty bucket, or one that was served before, at its port."""
    bucket = bucket or Bucket()
    server = _Server(urlsplit(bucket.url).port or 0, bucket)
    bucket.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield bucket
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
