"""A WebSocket server and client of the `websockets` library, with the proxy between them: PROXY_URL SERVER_PORT. Prints what they found."""

import asyncio
import sys

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

URL = sys.argv[1].replace("http://", "ws://")
PORT = int(sys.argv[2])
MIB = 1 << 20
server_saw = asyncio.Queue()


async def handler(ws):
    if ws.request.path == "/closing":
        await ws.close(1008, "not here")
        return
    try:
        async for message in ws:
            await ws.send(message)
    except ConnectionClosed:
        pass
    await server_saw.put((ws.close_code, ws.close_reason))


async def echoed(ws, message):
    await ws.send(message)
    return await ws.recv()


async def talk():
    options = {"max_size": 4 * MIB, "proxy": None, "subprotocols": ["other", "chat"]}
    async with connect(URL + "/talk", **options) as ws:
        print("subprotocol", ws.subprotocol)
        print("text", await echoed(ws, "näive ☃") == "näive ☃")
        print("binary", await echoed(ws, bytes(range(256))) == bytes(range(256)))
        print("empty", await echoed(ws, "") == "", await echoed(ws, b"") == b"")
        await ws.send(["one ", "two ", "three"])
        print("fragments", await ws.recv())
        large = bytes(i * 7 % 251 for i in range(MIB))
        print("a mebibyte", await echoed(ws, large) == large)
        print("text of a mebibyte", await echoed(ws, "x" * MIB) == "x" * MIB)
        for _ in range(20):
            await ws.send(large)
        print("twenty", [await ws.recv() == large for _ in range(20)].count(True))
        pong = await ws.ping(b"are you there")
        await pong
        print("pong")
        await ws.close(4000, "enough")
    print("server saw", *await server_saw.get())
    async with connect(URL + "/closing", **options) as ws:
        try:
            await ws.recv()
        except ConnectionClosed as closed:
            print("client saw", closed.rcvd.code, closed.rcvd.reason)
    ws = await connect(URL + "/talk", **options)
    ws.transport.abort()
    print("abort", (await server_saw.get())[0])
    many = [connect(URL + "/talk", **options) for _ in range(20)]
    many = await asyncio.gather(*many)
    answers = await asyncio.gather(*[echoed(ws, str(i)) for i, ws in enumerate(many)])
    print("many", answers == [str(i) for i in range(20)])
    await asyncio.gather(*[ws.close() for ws in many])


async def main():
    async with serve(handler, "127.0.0.1", PORT, subprotocols=["chat"], max_size=4 * MIB, compression=sys.argv[3] or None):
        await asyncio.wait_for(talk(), 50)


asyncio.run(main())
