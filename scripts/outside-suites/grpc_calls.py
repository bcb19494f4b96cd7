"""gRPC by grpcio's own client and server, through the proxy by HTTP/2 in cleartext on both sides.

With `--direct` in place of the binary the client talks to the server itself: what the cases expect is then shown to be so.
"""

import contextlib
import sys
import threading
import time
from concurrent import futures

import grpc

from harness import PATIENCE, Cases, Proxy, wait_until

LARGE = 3 * 1024 * 1024  # more than any window
BINARY = bytes(range(256))


class Service(grpc.GenericRpcHandler):
    """Messages are bytes. Counts what was executed, and what it saw cancelled."""

    def __init__(self):
        self.lock, self.executed, self.cancelled = threading.Lock(), 0, 0

    def service(self, call):
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        return {
            "/test.Echo/Unary": unary(self.unary),
            "/test.Echo/Pay": unary(self.pay),
            "/test.Echo/Refuse": unary(self.refuse),
            "/test.Echo/Hang": unary(self.hang),
            "/test.Echo/Count": grpc.unary_stream_rpc_method_handler(self.count),
            "/test.Echo/Sum": grpc.stream_unary_rpc_method_handler(self.sum),
            "/test.Echo/Chat": stream(self.chat),
        }.get(call.method)

    def unary(self, request, context):
        context.send_initial_metadata([("first", "1"), ("first-bin", BINARY)])
        context.set_trailing_metadata([("last", "2"), ("last-bin", BINARY)])
        return request

    def pay(self, request, context):
        with self.lock:
            self.executed += 1
            number = self.executed
        time.sleep(0.2)  # so that copies meet
        context.set_trailing_metadata([("payment", str(number))])
        if request == b"fail":
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no")
        return request + b" paid"

    def refuse(self, _, context):
        context.set_trailing_metadata([("why", "because")])
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no: %, ünïcode\n")

    def hang(self, request, context):
        ended = threading.Event()
        context.add_callback(ended.set)
        ended.wait(PATIENCE)
        self.count_cancelled(context)
        return request

    def count(self, request, _):
        for number in range(int(request)):
            yield b"%d" % number

    def sum(self, requests, _):
        return b"%d" % sum(len(request) for request in requests)

    def chat(self, requests, context):
        context.add_callback(lambda: self.count_cancelled(context))
        for request in requests:
            yield request + b"!"

    def count_cancelled(self, context):
        if context.code() != grpc.StatusCode.OK and not context.is_active():
            with self.lock:
                self.cancelled += 1


def pairs(metadata, *names):
    return {name: value for name, value in metadata or [] if name in names}


def plain(cases, channel, service):
    """What must pass through a proxy as if it were not there."""
    unary = channel.unary_unary("/test.Echo/Unary")
    reply, call = unary.with_call(b"hello", timeout=PATIENCE, metadata=[("x-bin", BINARY)])
    cases.check("unary: message and status", (reply, call.code()) == (b"hello", grpc.StatusCode.OK))
    first, last = {"first": "1", "first-bin": BINARY}, {"last": "2", "last-bin": BINARY}
    cases.check("unary: initial metadata", pairs(call.initial_metadata(), *first) == first)
    cases.check("unary: trailing metadata", pairs(call.trailing_metadata(), *last) == last)
    cases.check("unary: an empty message", unary(b"", timeout=PATIENCE) == b"")
    cases.check("unary: 3 MiB both ways", unary(b"x" * LARGE, timeout=PATIENCE) == b"x" * LARGE)

    try:
        channel.unary_unary("/test.Echo/Refuse")(b"", timeout=PATIENCE)
        cases.check("a status that is an error", False)
    except grpc.RpcError as error:
        said = (error.code(), error.details(), pairs(error.trailing_metadata(), "why"))
        wanted = (grpc.StatusCode.INVALID_ARGUMENT, "no: %, ünïcode\n", {"why": "because"})
        cases.check("a status that is an error: code, details, trailers", said == wanted, "" if said == wanted else said)
    try:
        channel.unary_unary("/test.Echo/Unknown")(b"", timeout=PATIENCE)
        cases.check("no such method", False)
    except grpc.RpcError as error:
        cases.check("no such method", error.code() == grpc.StatusCode.UNIMPLEMENTED, error.code())

    counted = list(channel.unary_stream("/test.Echo/Count")(b"2000", timeout=PATIENCE))
    cases.check("2000 messages from the server, in order", counted == [b"%d" % n for n in range(2000)])
    total = channel.stream_unary("/test.Echo/Sum")(iter([b"x" * 100_000] * 100), timeout=PATIENCE)
    cases.check("10 MB of messages from the client", total == b"10000000")

    turn, said = threading.Semaphore(1), []
    def questions():
        for number in range(50):
            turn.acquire()
            yield b"%d" % number
    for answer in channel.stream_stream("/test.Echo/Chat")(questions(), timeout=PATIENCE):
        said.append(answer)
        turn.release()
    cases.check("both ways, each question after the answer before", said == [b"%d!" % n for n in range(50)])

    calls = [unary.future(b"%d" % number, timeout=PATIENCE) for number in range(200)]
    cases.check("200 calls at a time", [call.result() for call in calls] == [b"%d" % n for n in range(200)])

    before = service.cancelled
    try:
        channel.unary_unary("/test.Echo/Hang")(b"", timeout=1)
        cases.check("a deadline", False)
    except grpc.RpcError as error:
        cases.check("a deadline: the client is told", error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error.code())
    cases.check("a deadline: the server notices", wait_until(lambda: service.cancelled == before + 1))

    leave = threading.Event()
    def endless():
        yield b"a"
        leave.wait(PATIENCE)
    call = channel.stream_stream("/test.Echo/Chat")(endless(), timeout=PATIENCE)
    answered = next(call) == b"a!"
    call.cancel()
    cases.check("a stream that the client cancels: it was open", answered)
    cases.check("a stream that the client cancels: the server notices", wait_until(lambda: service.cancelled == before + 2))
    leave.set()
    cases.check("the channel still works", unary(b"on", timeout=PATIENCE) == b"on")


def keyed(cases, channel, service):
    """Idempotency keys as metadata: each executed once, replays with the trailers that carry the status."""
    pay = channel.unary_unary("/test.Echo/Pay")
    def send(key, message=b"1000"):
        return pay.with_call(message, timeout=PATIENCE, metadata=[("idempotency-key", key)])
    first, call = send("one")
    again, replay = send("one")
    cases.check("keyed: executed once", (service.executed, first) == (1, b"1000 paid"), service.executed)
    cases.check("keyed: the replay is the same message", again == first)
    told = [pairs(it.trailing_metadata(), "payment") for it in (call, replay)]
    cases.check("keyed: and has the same trailers", told == [{"payment": "1"}] * 2, told)
    marks = [pairs(it.initial_metadata(), "idempotency-key-reply").get("idempotency-key-reply") for it in (call, replay)]
    cases.check("keyed: and says that it is one", marks == ["miss", "hit"], marks)

    with futures.ThreadPoolExecutor(16) as pool:
        copies = list(pool.map(lambda _: send("two")[0], range(16)))
    cases.check("keyed: 16 copies at once are one execution", service.executed == 2 and set(copies) == {b"1000 paid"})
    # The deadline of a call is the server's too; a client that leaves is not.
    leaving = pay.future(b"1000", timeout=PATIENCE, metadata=[("idempotency-key", "three")])
    cases.check("keyed: a call is under way", wait_until(lambda: service.executed == 3))
    leaving.cancel()
    late, _ = send("three")
    cases.check("keyed: and a retry gets what was executed", (service.executed, late) == (3, b"1000 paid"), service.executed)
    try:
        send("one", b"2000")
        cases.check("keyed: another message under the key", False)
    except grpc.RpcError as error:
        # The refusal is 422 by HTTP; gRPC's mapping of HTTP statuses has UNKNOWN for it.
        cases.check("keyed: another message under the key is refused", service.executed == 3, error.code())
    for attempt in (4, 5):
        try:
            send("four", b"fail")
            cases.check("keyed: a failure", False)
        except grpc.RpcError as error:
            failed = (error.code(), service.executed)
            cases.check("keyed: a failure is not kept", failed == (grpc.StatusCode.FAILED_PRECONDITION, attempt), failed)


def main():
    cases, service = Cases(), Service()
    server = grpc.server(futures.ThreadPoolExecutor(64), [service])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop, None)
        through = None
        if sys.argv[1] != "--direct":
            through = stack.enter_context(Proxy(sys.argv[1], f"""
[upstream]
url = "http://127.0.0.1:{port}"
protocol = "http2"
[identity]
from = []
[[route]]
name = "pay"
methods = ["POST"]
path = "/test.Echo/Pay"
key = "required"
"""))
        host = through.host if through else f"127.0.0.1:{port}"
        sizes = [("grpc.max_receive_message_length", 2 * LARGE)]
        with grpc.insecure_channel(host, options=sizes) as channel:
            for part in [plain, keyed] if through else [plain]:
                try:
                    part(cases, channel, service)
                except grpc.RpcError as error:
                    cases.check(f"all of {part.__name__}", False, f"{error.code()} {error.details()}")
        if through:
            settled = wait_until(lambda: not {k: v for k, v in through.levels().items() if "upstream" not in k})
            cases.check("nothing is left under way", settled, "" if settled else through.levels())
            cases.check("it ends well", through.stop() == 0)
    cases.exit()


main()
