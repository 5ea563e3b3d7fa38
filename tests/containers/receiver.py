"""An endpoint of webhooks: verifies each notification and says what came, a line of JSON each."""

import json
import os
from http.server import BaseHTTPRequestHandler, HTTPServer

from standardwebhooks import Webhook


class Endpoint(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        event = Webhook(os.environ["SECRET"]).verify(body, dict(self.headers))  # else it raises, and gives no answer
        print(json.dumps(event), flush=True)  # noqa: T201  # the log is what a test reads
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing but notifications."""


HTTPServer(("0.0.0.0", 8000), Endpoint).serve_forever()  # noqa: S104  # of its container
