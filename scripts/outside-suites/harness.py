"""What the suites share: the proxy as a process, what its metrics say, and the count of what passed."""

import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

PATIENCE = 30  # seconds for what must happen


class Cases:
    """Counts what passed and what did not, and closes with one line."""

    def __init__(self):
        self.passed = self.failed = 0

    def check(self, name, good, detail=""):
        print(f"{'ok    ' if good else 'FAILED'} {name}{': ' + str(detail) if str(detail) else ''}", flush=True)
        self.passed += bool(good)
        self.failed += not good
        return good

    def exit(self):
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        sys.exit(1 if self.failed or not self.passed else 0)


def wait_until(what, patience=PATIENCE):
    """Whether `what()` comes true in time."""
    until = time.monotonic() + patience
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


class Proxy:
    """The binary with this configuration, to which listeners on free ports are added. Ends with its block."""

    def __init__(self, binary, sections, server=""):
        self.folder = tempfile.TemporaryDirectory()
        self.log = pathlib.Path(self.folder.name, "log")
        file = pathlib.Path(self.folder.name, "proxy.toml")
        file.write_text(
            f'[server]\nlisten = "127.0.0.1:0"\n{server}\n[admin]\nlisten = "127.0.0.1:0"\n'
            f'[telemetry]\nlog_format = "json"\naccess_log = false\n{sections}\n'
        )
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([binary, "--config", file], stdin=subprocess.DEVNULL, stderr=log)
        if not wait_until(lambda: self.process.poll() is not None or self.said("ready")):
            self.process.kill()
        if self.process.poll() is not None:
            sys.exit(f"the proxy does not start:\n{self.log.read_text()}\n0 passed, 1 failed")
        self.port = self._port("listening for clients")
        self.admin = self._port("listening for operators")
        self.host = f"127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def lines(self):
        for line in self.log.read_text().splitlines():
            if line.startswith("{") and line.endswith("}"):
                yield json.loads(line)

    def said(self, message):
        return any(line["msg"] == message for line in self.lines())

    def _port(self, message):
        return int(next(line["address"] for line in self.lines() if line["msg"] == message).rpartition(":")[2])

    def metrics(self, name):
        """The samples of one metric: a dictionary from its labels, as they are written, to the value."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=PATIENCE) as answer:
            text = answer.read().decode()
        found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
        return {labels: float(value) for labels, value in found}

    def levels(self):
        """Every gauge of what is under way that is not zero, but for the connection that asks."""
        return {
            f"{name}{{{labels}}}": value
            for name in ["idem_proxy_in_flight", "idem_proxy_waiters", "idem_proxy_connections", "idem_proxy_limit_level"]
            for labels, value in self.metrics(name).items()
            if value and "admin" not in labels
        }

    def resident(self):
        """Bytes of memory in use."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024

    def descriptors(self):
        return len(list(pathlib.Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def stop(self):
        """Drains it; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE * 2)
