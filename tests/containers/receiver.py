"""A webhook endpoint that verifies each notification and prints it as a line of JSON."""

import json
import os
from http.server import BaseHTTPRequestHandler, HTTPServer

from standardwebhooks import Webhook


class Endpoint(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        event = Webhook(os.environ["SECRET"]).verify(body, dict(self.headers))  # raises if the signature is wrong
        print(json.dumps(event), flush=True)  # noqa: T201  # the test reads the log
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print only notifications."""


HTTPServer(("0.0.0.0", 8000), Endpoint).serve_forever()  # noqa: S104  # only reachable inside the container network
