"""A typed client of the HTTP API, for tills and apps.

``LoyaltyClient`` (sync) and ``AsyncLoyaltyClient`` (async) are in ``api.client.clients``. Both repeat a request after
temporary errors, under the same Idempotency-Key. They never return a balance that is older than one they have seen.

    with LoyaltyClient("http://127.0.0.1:8080", credentials=key) as loyalty:
        reservation = loyalty.redeem("9265846829", Decimal("10.00"))
        loyalty.capture(reservation.redemption_id)
        loyalty.balance("9265846829").available

The package needs httpx and msgspec, and nothing else of this project. Its imports are relative, so that an app with a
package ``api`` of its own can copy this folder under another name.
"""
