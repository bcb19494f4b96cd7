"""Very many connections, a tenth of which leave at every point of a request: nothing is executed twice, nothing is left behind.

    run soak BINARY             100 000 connections, 10 000 of them abandoned; ten minutes at most
    run soak BINARY --short     5 000 and 500

Memory is compared between the first fifth, after which the store is full, and the end. It may grow by a tenth and 16 MiB: what allocators keep.
"""

import asyncio
import collections
import contextlib
import json
import socket
import struct
import subprocess
import sys
import time

from harness import PATIENCE, Cases, Proxy, wait_until

AT_A_TIME = 64
LIMIT = 600  # seconds for all connections
LARGE = b"x" * 600_000
BODY = b'{"amount": 12345678}'
POINTS = ["before the head", "in the head", "in the body", "while it waits", "while it reads"]


async def service():
    """The upstream, in a process of its own: counts the executions of each key."""
    executed = collections.Counter()

    async def serve(reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                target, fields = head.split(" ", 2)[1], {}
                for line in head.split("\r\n")[1:]:
                    name, _, value = line.partition(":")
                    fields[name.lower()] = value.strip()
                await reader.readexactly(int(fields.get("content-length", 0)))
                if target == "/report":
                    twice = [key for key, count in executed.items() if count > 1]
                    body = json.dumps({"keys": len(executed), "twice": twice[:10]}).encode()
                else:
                    if "idempotency-key" in fields:
                        executed[fields["idempotency-key"]] += 1
                    await asyncio.sleep(0.005)  # so that some leave while it waits
                    body = LARGE if target.startswith("/large") else b'{"id":"1"}'
                writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Load:
    """Clients of the proxy, so many at a time."""

    def __init__(self, port):
        self.port, self.next, self.abandoned, self.wrong = port, 0, collections.Counter(), []
        self.end = time.monotonic() + LIMIT

    async def connect(self, number):
        # Each address has ports of its own, and one alone would run out of them.
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(f"127.0.0.{2 + number % 32}", 0))

    @staticmethod
    def request(path, key, last):
        key = f"Idempotency-Key: {key}\r\n" if key else ""
        close = "Connection: close\r\n" if last else ""
        return f"POST {path} HTTP/1.1\r\nHost: a\r\n{key}{close}Content-Length: {len(BODY)}\r\n\r\n".encode(), BODY

    @staticmethod
    async def answer(reader):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        body = await reader.readexactly(length)
        marker = head.split("idempotency-key-reply:")[1].split("\r\n")[0].strip() if "idempotency-key-reply:" in head else ""
        return head.split(" ")[1], marker, len(body)

    async def whole(self, number, path, key, first="miss"):
        """A request that is answered; with a key, once more on the same connection."""
        reader, writer = await self.connect(number)
        try:
            for wanted, last in ([(first, False), ("hit", True)] if key else [("", True)]):
                writer.write(b"".join(self.request(path, key, last)))
                status, marker, _ = await asyncio.wait_for(self.answer(reader), PATIENCE)
                if status != "201" or (wanted is not None and marker != wanted):
                    self.wrong.append((number, path, status, marker, wanted))
        finally:
            writer.close()

    async def abandon(self, number, point, path, key):
        """A request whose client leaves at this point, with a reset or without."""
        reader, writer = await self.connect(number)
        head, body = self.request(path, key, False)
        writer.write([b"", head[: len(head) // 2], head + body[:7], head + body, head + body][point])
        await writer.drain()
        if point == 4:
            with contextlib.suppress(asyncio.IncompleteReadError):
                await asyncio.wait_for(reader.readexactly(1000), PATIENCE)
        elif number % 3:
            await asyncio.sleep(0.002)
        if number % 2:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        self.abandoned[POINTS[point]] += 1

    async def one(self, number):
        key = f"k{number}" if number // 2 % 2 else ""
        path = "/large" if number % 50 == 7 else "/orders"
        if number % 10:
            return await self.whole(number, path, key)
        point = number // 10 % len(POINTS)
        path = "/large" if point == 4 else path
        await self.abandon(number, point, path, key)
        if key:
            # The same key again: executed now, or already, or just being so; but once.
            await self.whole(number, path, key, first=None)

    async def run(self, until):
        async def client():
            while self.next < until and time.monotonic() < self.end:
                number, self.next = self.next, self.next + 1
                try:
                    await self.one(number)
                except (OSError, TimeoutError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
                    self.wrong.append((number, repr(error)))

        await asyncio.gather(*(client() for _ in range(AT_A_TIME)))


def main():
    total = 5_000 if "--short" in sys.argv else 100_000
    cases = Cases()
    upstream = subprocess.Popen([sys.executable, __file__, "--service"], stdout=subprocess.PIPE, text=True)
    try:
        soak(cases, total, int(upstream.stdout.readline()))
    finally:
        upstream.kill()
        upstream.wait()
    cases.exit()


def soak(cases, total, upstream):
    sections = f"""
[upstream]
url = "http://127.0.0.1:{upstream}"
idle_timeout = "2s"
[store.memory]
max_bytes = "{4 if total < 10_000 else 16}MiB"
[identity]
from = []
[[route]]
name = "orders"
methods = ["POST"]
path = "/{{*rest}}"
"""
    with Proxy(sys.argv[1], sections) as proxy:
        load, began = Load(proxy.port), time.monotonic()
        fresh = proxy.descriptors()
        resident = []  # bytes, after each fifth
        for part in range(1, 6):
            asyncio.run(load.run(total * part // 5))
            settled = wait_until(lambda: not proxy.levels())
            cases.check(f"{load.next}: nothing is left under way", settled, proxy.levels() or "")
            resident.append(proxy.resident())
        rate = load.next / (time.monotonic() - began)
        cases.check(f"{load.next} of {total} connections", load.next == total, f"{rate:.0f} a second")
        left = sum(load.abandoned.values())
        cases.check(f"{left} abandoned", left == total // 10, dict(load.abandoned))
        cases.check("every other request was answered as it should be", not load.wrong, load.wrong[:5] or "")
        cases.check("no descriptor is left", wait_until(lambda: proxy.descriptors() <= fresh), f"{fresh}, then {proxy.descriptors()}")
        most = resident[0] * 1.1 + 16 * 2**20
        cases.check("memory is flat", resident[-1] <= most, [f"{it / 2**20:.1f} MiB" for it in resident])
        twice = asyncio.run(report(upstream))
        cases.check("no key was executed twice", twice["keys"] and not twice["twice"], twice)
        cases.check("it ends well", proxy.stop() == 0)


async def report(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /report HTTP/1.1\r\nHost: a\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(int(head.split(b"Content-Length: ")[1]))
    writer.close()
    return json.loads(body)


if sys.argv[1] == "--service":
    asyncio.run(service())
else:
    main()
