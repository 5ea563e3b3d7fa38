"""A parser that ignores the offer of a client to change to another protocol, as HTTP allows."""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_parse = httptools.HttpRequestParser.feed_data
"""``super().feed_data`` would take twice as long for a small packet."""


class OfferIgnoringParser(httptools.HttpRequestParser):
    """Parses a request with an offer, for example ``Upgrade: h2c``, as if the offer were missing.

    After the head of such a request, httptools expects the other protocol. It takes the body for the begin of this
    protocol, and then for the next request (MagicStack/httptools#124). uvicorn drops the bytes that it has already
    (Kludex/uvicorn#2722). So a body could become a request with the credentials of another caller of the same proxy.

    So httptools parses the head of such a request twice: the second time without the header Upgrade. The protocol must
    do nothing at the end of the first head, and at the end of its message: there, ``should_upgrade`` is true.
    """

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self._start()

    def feed_data(self, data: bytes | memoryview) -> None:  # type: ignore[override]
        while data:  # A packet can have many requests with offers.
            try:
                _parse(self, data)
                break
            except httptools.HttpParserUpgrade as offer:
                (head_end,) = offer.args
            head = self._head_without_offer()
            self._start()
            _parse(self, head)
            data = memoryview(data)[head_end:]

    def _start(self) -> None:
        """Start as for a new connection. Otherwise httptools would keep the state of the offer."""
        super().__init__(self._protocol)
        # As uvicorn: a client may send a request after one with Connection: close. The server ignores it.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    def _head_without_offer(self) -> bytes:
        """The head that the protocol has got. Raises HttpParserError for CONNECT, which is an offer by itself."""
        if self.get_method() == b"CONNECT":
            raise httptools.HttpParserError
        # Without Upgrade, the option "upgrade" in Connection has no effect. An option "close" must stay.
        lines = [b"%s: %s\r\n" % header for header in self._protocol.headers if header[0] != b"upgrade"]
        target = self._protocol.url, self.get_http_version().encode()
        return b"%s %s HTTP/%s\r\n%s\r\n" % (self.get_method(), *target, b"".join(lines))
