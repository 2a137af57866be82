-- The table of clicks.c. Rows that come twice are one under FINAL; the window lets the server drop an INSERT that comes twice at once.
CREATE TABLE site.views
(
    at DateTime64(3, 'UTC'),
    session UUID,
    user UInt64,
    country LowCardinality(String),
    url String,
    took_ms UInt32,
    agent LowCardinality(String),
    mobile Bool,
    referrer Nullable(String),
    tags Array(String)
)
ENGINE = ReplacingMergeTree
ORDER BY (session, at, url)
SETTINGS non_replicated_deduplication_window = 1000
