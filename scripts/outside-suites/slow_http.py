"""slowhttptest's clients that send and read too slowly: each connection is ended by its limit, and others are served throughout."""

import csv
import http.server
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from harness import PATIENCE, Cases, Proxy, wait_until

LIMIT = 5  # seconds, for each of the proxy's limits
CLIENTS = 200
LARGE = bytes(8 * 1024 * 1024)  # more than sockets and buffers hold


class Service(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        try:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = LARGE if self.path == "/large" else b"ok"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, *_):
        pass  # a peer that went away


class Bystander(threading.Thread):
    """Somebody else, who asks twice a second and must always be answered."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.url, self.answers, self.failures, self.done = url, 0, [], threading.Event()

    def run(self):
        while not self.done.wait(0.5):
            try:
                with urllib.request.urlopen(self.url, timeout=PATIENCE) as answer:
                    answer.read()
                self.answers += 1
            except OSError as error:
                self.failures.append(error)


# name, options, path, who has to see within how many seconds that every connection is closed (nobody: it is progress,
# however slow). A client that reads 16 bytes in 5 s sees the end behind all that its kernel holds, so the proxy is asked.
MODES = [
    ("slow heads", ["-H", "-i", "3", "-t", "GET"], "/", ("clients", 30)),
    ("stalled bodies, passing through", ["-B", "-i", "20", "-s", "8192"], "/elsewhere", ("clients", 30)),
    ("stalled bodies, keyed", ["-B", "-i", "20", "-s", "8192"], "/orders", ("clients", 30)),
    ("trickling bodies, keyed", ["-B", "-i", "2", "-s", "8192", "-x", "10"], "/orders", ("nobody", 20)),
    # A kernel offers no new window before some hundred bytes were read: to the proxy such a client does not read at all.
    ("slow readers", ["-X", "-w", "256", "-y", "512", "-n", "5", "-z", "16", "-k", "1"], "/large", ("proxy", 40)),
]


def attack(proxy, folder, options, path, seconds):
    """How it ended, the clients' last count, and the proxy's count of their connections over time."""
    report = pathlib.Path(folder, "report")
    command = ["slowhttptest", *options, "-c", str(CLIENTS), "-r", "100", "-l", str(seconds), "-p", "5"]
    command += ["-g", "-o", str(report), "-u", f"http://{proxy.host}{path}", "-v", "1"]
    levels, until = [], time.monotonic() + 120
    with tempfile.TemporaryFile("w+") as output:
        clients = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        while clients.poll() is None and time.monotonic() < until:
            levels.append(int(proxy.metrics("idem_proxy_connections")['side="client"']))
            time.sleep(0.5)
        clients.kill()
        clients.wait()
        output.seek(0)
        said = output.read()
    with report.with_suffix(".csv").open() as file:
        rows = [{key.strip(): value for key, value in row.items() if key} for row in csv.DictReader(file)]
    return said, {key: rows[-1].get(key) for key in ["Seconds", "Closed", "Connected"]}, levels


def main():
    binary = sys.argv[1]
    cases = Cases()
    service = Server(("127.0.0.1", 0), Service)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    limits = "\n".join(f'{name}_timeout = "{LIMIT}s"' for name in ["head", "body", "keepalive", "write"])
    sections = f"""
[upstream]
url = "http://127.0.0.1:{service.server_port}"
[[route]]
name = "orders"
methods = ["POST"]
path = "/orders"
key = "derived"
retention = "1m"
identity = {{ from = [] }}
"""
    with Proxy(binary, sections, limits) as proxy, tempfile.TemporaryDirectory() as folder:
        for name, options, path, (judge, seconds) in MODES:
            bystander = Bystander(f"http://{proxy.host}/")
            bystander.start()
            said, counted, levels = attack(proxy, folder, options, path, seconds)
            bystander.done.set()
            bystander.join()
            detail = f"{counted}; at the proxy at most {max(levels)}, then {levels[-5]}"
            cases.check(f"{name}: they were there", max(levels) > CLIENTS // 2, detail)
            if judge == "clients":
                cases.check(f"{name}: every connection is closed", "No open connections left" in said)
            elif judge == "proxy":
                # Some time before the end of the test, which closes them too; the bystander may have one.
                cases.check(f"{name}: every connection is closed", levels[-5] <= 1)
            # Those whose test is over leave before the next begins.
            wait_until(lambda: not proxy.levels().get('idem_proxy_connections{side="client"}'))
            good = not bystander.failures and bystander.answers > 1
            cases.check(f"{name}: others are served", good, bystander.failures or f"{bystander.answers} answers")
        cases.check("it ends well", proxy.stop() == 0)
    cases.exit()


main()
