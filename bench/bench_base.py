"""What the parts of the benchmark share."""
import os
import sys

COLUMNS = "id bigint primary key, a int, b int, c bigint, d float8, at timestamptz, t text, h text"
ROW = "g, g % 1000, g % 77, g * 3, g * 0.25, clock_timestamp(), 'a text of some length', md5(g::text)"
WIDE = 100  # columns
BATCH = 10000  # rows; the sinks' own default
TABLES = 1000  # of the capture part
TICK = os.sysconf("SC_CLK_TCK")
os.environ["PGOPTIONS"] = "-c client_min_messages=warning"


def say(text):
    print(text, file=sys.stderr, flush=True)
