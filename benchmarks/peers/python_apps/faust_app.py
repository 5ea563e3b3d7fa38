"""The loyalty branch in Faust, which serves its table over HTTP: python faust_app.py worker …

Faust parses the arguments, so the settings are environment variables: PEER_BROKER, PEER_GROUP, PEER_PREFIX.
"""

import os
from typing import Any

import faust
from faust.web import Request, Response, View
from invoices import notification, purchase

PREFIX = os.environ["PEER_PREFIX"]
PARTITIONS = 3

app = faust.App(
    os.environ["PEER_GROUP"],
    broker=f"kafka://{os.environ['PEER_BROKER']}",
    store="rocksdb://?driver=rocksdict",
    topic_partitions=PARTITIONS,
    topic_replication_factor=1,
)
invoices = app.topic(
    f"{PREFIX}pos-invoices", key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
)
by_customer = app.topic(f"{os.environ['PEER_GROUP']}-by-customer", key_type=str, internal=True, partitions=PARTITIONS)
loyalty = app.topic(f"{PREFIX}loyalty", key_type=str, value_type=bytes, value_serializer="raw")
accounts = app.Table("accounts", key_type=str, partitions=PARTITIONS)


@app.agent(invoices)
async def read(stream: faust.StreamT) -> None:
    async for event in stream.events():
        bought = purchase(event.value, int(event.message.timestamp * 1000))
        if bought:
            await by_customer.send(key=bought["CustomerCardNo"], value=bought)


@app.agent(by_customer)
async def add(stream: faust.StreamT) -> None:
    async for bought in stream:
        card = bought["CustomerCardNo"]
        points, sequence = accounts.get(card) or (0, 0)
        points, sequence = points + bought["Earned"], sequence + 1
        accounts[card] = (points, sequence)
        await loyalty.send(key=card, value=notification(bought, points, sequence))


@app.page("/v1/customers/{card}/balance")
@app.table_route(table=accounts, match_info="card")
async def balance(web: View, _: Request, card: str) -> Response:
    account: Any = accounts.get(card)
    if account is None:
        raise web.NotFound(card)
    points, sequence = account
    answer = {"CustomerCardNo": card, "TotalLoyaltyPoints": f"{points // 100}.{points % 100:02}", "Sequence": sequence}
    return web.json(answer)


if __name__ == "__main__":
    app.main()
