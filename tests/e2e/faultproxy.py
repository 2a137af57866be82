#!/usr/bin/env python3
"""A TCP proxy that does to connections what networks do.

    faultproxy.py LISTEN_PORT TARGET_PORT CONTROL_SOCKET      # both on 127.0.0.1
    faultproxy.py CONTROL_SOCKET COMMAND...                   # gives it one command, prints the answer

Commands:
    rule [match=TEXT] [skip=BYTES] ACTION
        From now on, what the target sends (after so many more bytes of it) on connections, old and new, whose client has said TEXT at any time
        (by default: all connections) meets
            delay=MS      each piece comes so much later
            rate=BYTES    at most so many bytes a second
            stall         nothing is forwarded in either direction, nothing is closed
            truncate      what comes behind is dropped and the connection ended: a message is cut in its middle
            reset         a TCP reset towards both sides
    clear                 no rule any more; what was stalled flows on
    hits                  on how many connections a rule has acted so far
A rule takes the place of the one before.
TEXT is compared with the bytes as they are, so it can be of the startup packet (an application_name) or of a statement.
"""

import socket
import struct
import sys
import threading
import time


class Rule:
    def __init__(self, words):
        self.match, self.skip, self.action, self.amount, self.met = b"", 0, None, 0, set()
        for w in words:
            key, _, value = w.partition("=")
            if key == "match":
                self.match = value.encode()
            elif key == "skip":
                self.skip = int(value)
            elif key in ("delay", "rate") and int(value) > 0 or key in ("stall", "truncate", "reset") and not value:
                self.action, self.amount = key, int(value or 0)
            else:
                raise ValueError(w)
        if not self.action:
            raise ValueError("no action")


class Proxy:
    def __init__(self, target):
        self.target = target
        self.changed = threading.Condition()
        self.rules, self.hits = [], 0

    def command(self, words):
        with self.changed:
            if words[0] == "rule":
                self.rules = [Rule(words[1:])]
            elif words[0] == "clear":
                self.rules = []
            elif words[0] != "hits":
                raise ValueError(words[0])
            self.changed.notify_all()
            return str(self.hits)


class Connection:
    def __init__(self, proxy, client):
        self.proxy, self.client, self.said = proxy, client, b""
        self.server = socket.create_connection(("127.0.0.1", proxy.target))
        self.counts = {}  # rule: bytes from the target since it was set
        for s in (client, self.server):
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self.pump, args=(client, self.server, False), daemon=True).start()
        threading.Thread(target=self.pump, args=(self.server, client, True), daemon=True).start()

    def rule(self, ahead):
        """The rule that acts on this connection now, and how many of the bytes ahead pass before it does. Held."""
        for r in self.proxy.rules:
            if r.match in self.said:
                left = r.skip - self.counts.get(r, 0)
                if ahead is None and left <= 0 or ahead is not None and left < ahead:
                    if self not in r.met:
                        r.met.add(self)
                        self.proxy.hits += 1
                    return r, max(left, 0)
        return None, 0

    def end(self, reset):
        for s in (self.client, self.server):
            try:
                if reset:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                s.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)  # a thread that waits for input would keep it open
                s.close()
            except OSError:
                pass

    def forward(self, to, data, from_target):
        """False: the connection has ended."""
        p = self.proxy
        with p.changed:
            if not from_target and len(self.said) < 1 << 16:
                self.said += data
            r, passing = self.rule(len(data) if from_target else None)
            if from_target:
                for x in p.rules:
                    if x.match in self.said:
                        self.counts[x] = self.counts.get(x, 0) + len(data)
        if r and r.action in ("truncate", "reset"):
            to.sendall(data[:passing])
            if passing:
                time.sleep(0.2)  # so that it is there before the end
            self.end(r.action == "reset")
            return False
        if r and r.action == "stall":
            to.sendall(data[:passing])
            data = data[passing:]
            with p.changed:
                while r in p.rules:
                    p.changed.wait()
        if r and from_target and r.action == "delay":
            time.sleep(r.amount / 1000)
        if r and from_target and r.action == "rate":
            while data and r in p.rules:
                piece = max(r.amount // 20, 1)
                to.sendall(data[:piece])
                data = data[piece:]
                time.sleep(0.05)
        to.sendall(data)
        return True

    def pump(self, of, to, from_target):
        try:
            while True:
                data = of.recv(1 << 16)
                if not data:
                    to.shutdown(socket.SHUT_WR)
                    return
                if not self.forward(to, data, from_target):
                    return
        except OSError:
            self.end(False)


def serve(listen, target, control):
    proxy = Proxy(target)
    c = socket.socket(socket.AF_UNIX)
    c.bind(control)
    c.listen(16)
    s = socket.create_server(("127.0.0.1", listen), backlog=128)

    def accept():
        while True:
            client = s.accept()[0]
            try:
                Connection(proxy, client)
            except OSError:  # the target is not there
                client.close()

    threading.Thread(target=accept, daemon=True).start()
    while True:
        peer = c.accept()[0]
        with peer:
            try:
                answer = proxy.command(peer.makefile().readline().rstrip("\n").split("\t"))
            except ValueError as e:
                answer = f"error: {e}"
            peer.sendall(answer.encode())


def ask(control, words):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(control)
        s.sendall(("\t".join(words) + "\n").encode())
        answer = s.makefile().read()
    print(answer)
    return answer.startswith("error")


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1].isdigit():
        serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    sys.exit(ask(sys.argv[1], sys.argv[2:]))
