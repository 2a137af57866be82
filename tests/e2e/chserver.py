#!/usr/bin/env python3
"""ClickHouse 26.7 as a server: the engine is a shared library, whose command line is told to listen and then to read a FIFO that nobody writes to.

    chserver.py LIBCHDB DIRECTORY CONFIG HTTP-PORT TCP-PORT
"""
import ctypes
import os
import sys

library, directory, config, http, tcp = sys.argv[1:]
fifo = os.path.join(directory, "stop.fifo")
if not os.path.exists(fifo):
    os.mkfifo(fifo)
args = [
    "clickhouse",
    "--path=" + directory,
    "--config-file=" + config,
    "--listen_host=127.0.0.1",
    "--http_port=" + http,
    "--tcp_port=" + tcp,
    "--logger.console=0",
    "--query",
    "SYSTEM START LISTEN HTTP; SYSTEM START LISTEN TCP; SELECT count() FROM file('" + fifo + "', 'LineAsString', 's String')",
]
argv = (ctypes.c_char_p * len(args))(*[a.encode() for a in args])
chdb = ctypes.CDLL(library)
chdb.chdb_query_cmdline.restype = ctypes.c_void_p
chdb.chdb_result_error.restype = ctypes.c_char_p
chdb.chdb_result_error.argtypes = [ctypes.c_void_p]
result = chdb.chdb_query_cmdline(len(args), argv)
error = chdb.chdb_result_error(result)
if error:
    sys.exit(error.decode(errors="replace"))
