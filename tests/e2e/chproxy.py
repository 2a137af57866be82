#!/usr/bin/env python3
"""An HTTP proxy before a ClickHouse server that does to INSERTs of a token what servers and networks do.

    chproxy.py LISTEN_PORT TARGET_PORT MODE_FILE LOG_FILE [CERTIFICATE KEY]      # both on 127.0.0.1; with a certificate it speaks TLS

The first word of MODE_FILE says what befalls an INSERT with an insert_deduplication_token:
    pass    nothing
    header  200 with X-ClickHouse-Exception-Code, and it was not applied
    text    200 with an exception as its body, and it was not applied
    html    200 from somebody who is no ClickHouse
    busy    500 with exception 252, too many parts
    late    it is applied, and there is no answer
    slow    it is applied, and the answer comes a byte a second
    full    500 with exception 243, no space; readonly: with 242, a table that is read-only
And any request:
    token WORD   403 but for those with such a bearer token, which goes no further
Each such INSERT is a line of LOG_FILE: mode and token.
"""
import http.client
import http.server
import ssl
import sys
import time
import urllib.parse

listen, target, mode_file, log_file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
CODES = {
    "busy": (252, "Too many parts (3001). Merges are processing significantly slower than inserts. (TOO_MANY_PARTS)"),
    "full": (243, "Cannot reserve 1.00 MiB, not enough space. (NOT_ENOUGH_SPACE)"),
    "readonly": (242, "Table is in readonly mode: replica_path=/t/replicas/a. (TABLE_IS_READ_ONLY)"),
}
MEMORY = "Code: 241. DB::Exception: Memory limit exceeded. (MEMORY_LIMIT_EXCEEDED)"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, headers, body):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def forward(self, body):
        c = http.client.HTTPConnection("127.0.0.1", target, timeout=60)
        c.request(self.command, self.path, body, {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection", "authorization")})
        r = c.getresponse()
        data = r.read()
        c.close()
        return r.status, [(k, v) for k, v in r.getheaders() if k.lower().startswith("x-clickhouse")], data

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        token = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).get("insert_deduplication_token")
        with open(mode_file) as f:
            words = f.read().split() or ["pass"]
        if words[0] == "token" and self.headers.get("Authorization") != f"Bearer {words[1]}":
            self.answer(403, [("X-ClickHouse-Exception-Code", "516")], b"Code: 516. DB::Exception: Authentication failed: the token is not valid. (AUTHENTICATION_FAILED)")
            return
        mode = words[0] if token else "pass"
        if token:
            with open(log_file, "a") as f:
                f.write(f"{mode} {token[0]}\n")
        if mode == "header":
            self.answer(200, [("X-ClickHouse-Exception-Code", "241")], b"")
        elif mode == "text":
            self.answer(200, [], MEMORY.encode())
        elif mode == "html":
            self.answer(200, [], b"<html>welcome</html>")
        elif mode in CODES:
            code, text = CODES[mode]
            self.answer(500, [("X-ClickHouse-Exception-Code", str(code))], f"Code: {code}. DB::Exception: {text}".encode())
        else:
            got = self.forward(body)
            if mode == "late":
                time.sleep(60)
            if mode == "slow":
                for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n":
                    self.wfile.write(bytes([byte]))
                    time.sleep(1)
                return
            self.answer(*got)

    do_GET = do_POST

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # the client does not wait for what is late


server = Server(("127.0.0.1", listen), Handler)
if len(sys.argv) > 5:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[5], sys.argv[6])
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
server.serve_forever()
