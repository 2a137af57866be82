/*
 * ch_sink.h: shared by the files of the ClickHouse sink.
 *
 *   ch_sink.c      options, life
 *   ch_endpoints.c which servers there are, what each is, the lease's table; tables bound and swapped at every one
 *   ch_http.c      one query over HTTP, and what its answer means
 *   ch_catalog.c   tables described and made
 *   ch_append.c    rows as they are, into a table of the user's
 *   ch_shape.c     what the options say of one table
 *   ch_table.c     a table as its rows are written: types, statements, cells of a row
 *   ch_encoder.c   changes into records
 *   ch_complete.c  records that lack something get it from the table
 *   ch_native.c    rows as a Native block
 *   ch_pack.c      what is sent, compressed
 *   ch_writer.c    a sealed batch into INSERTs
 *
 * A chunk is a sequence of records; integers are little-endian.
 *
 *   record = u8 kind  u32 length  body
 *   ROW       a row in RowBinary, in the order of the INSERT's columns: as it will be sent
 *   OPEN      u8 how  u64 version  varint(n) key  varint(n) base  state[columns]  cell*  ours
 *             key, base: the cells of the key in key order; base: of the row it moved from, "" if it did not
 *             state: 1 where the column's cell is here, 0 where it is to come from the live row; ours: the cells of the columns that are ours
 *   TRUNCATE  u64 version  i64 commit time
 *
 * A chunk of a table of the user's is rows in RowBinary alone.
 *
 * complete makes a ROW of each OPEN, or leaves it out; a sealed batch that is written has none.
 */
#ifndef TR_CH_SINK_H
#define TR_CH_SINK_H

#include <stdatomic.h>

#include "arena.h"
#include "ch_value.h"
#include "cursor.h"
#include "httpc.h"
#include "sqlsink.h"

struct tr_ch_options {
    struct tr_strv urls, as_text, low_cardinality, order_by, partition_by;
    const char *database, *user, *password, *token, *ca_file;
    int32_t format, compression, tombstone;
    bool allow_duplicates;
};

enum { TR_CH_ROWBINARY, TR_CH_NATIVE };             /* format */
enum { TR_CH_PLAIN, TR_CH_ZSTD, TR_CH_LZ4 };       /* compression */
enum { TR_CH_TOMBSTONE_ROW, TR_CH_TOMBSTONE_KEY }; /* tombstone */

enum { CH_ENDPOINTS_MAX = 64 }; /* bits of ch_table.bound */

struct tr_endpoint {
    char *url;                 /* without a slash at its end */
    uint32_t shard;
    _Atomic(bool) known;       /* it was asked what it is, and has our tables; a writer takes it back when one is missing */
    _Atomic(bool) away;        /* it did not answer the target thread, which looks at it again by itself */
};

struct ch_sink {
    struct tr_sqlsink sql;     /* first */
    struct tr_catalog catalog;
    const struct tr_ch_options *o;
    struct tr_endpoint *endpoints, **by_index; /* shard by shard; as tr_sink.endpoints */
    uint32_t n_endpoints, *per_shard;
    char *headers[3];
    struct tr_httpc *http;     /* target thread */
    uint32_t at;               /* target thread: the endpoint that it asks */
    uint64_t swapping;         /* target thread: the snapshot_id of a swap that may be through at some servers and not at others; 0: none */
    _Atomic(uint32_t) *acked;  /* per shard, the endpoint (of the shard) of the last write: what was written before is asked for there */
};

/* ---- ch_http.c ---- */

struct ch_query {
    const char *params;        /* "&name=value…", or "" */
    const struct tr_slice *body;
    size_t n_body;
    const char *content_type, *content_encoding;
    size_t answer_max;
    bool data;                 /* the answer has data; else it is empty */
};

struct ch_answer {
    long status, code;         /* code: the exception's by its header, or 0 */
    const char *tag;           /* X-ClickHouse-Exception-Tag, or "" */
    bool data;
    struct tr_slice body;
};

int tr_ch_session(const struct ch_sink *s, struct tr_httpc **ret, struct tr_err *err);
/* RETRY, REJECT, STALE: by what the server said; blame is set. */
int tr_ch_ask(const struct ch_sink *s, struct tr_httpc *h, const struct tr_endpoint *ep, const struct ch_query *q, int64_t deadline_ns, struct tr_buf *out, struct tr_err *err);
/* The target thread's: one statement, at the endpoint it is at. */
int tr_ch_say(struct ch_sink *s, const char *sql, const char *params, bool data, int64_t deadline_ns, struct tr_buf *out, struct tr_err *err);
/* The same: SELECT … FROM a system table, of one namespace and, unless name_is is NULL, one table of it; what each column of it is called. */
int tr_ch_question(struct ch_sink *s, const char *select, const char *ns_is, const char *ns, const char *name_is, const char *name, const char *format, int64_t deadline_ns, struct tr_buf *out,
                   struct tr_err *err);
int tr_ch_url_escape(struct tr_slice text, struct tr_buf *out); /* NOMEM */
/* Pure. */
int tr_ch_judge(const char *what, const struct ch_answer *a, struct tr_err *err);

/* ---- ch_endpoints.c ---- */

int tr_ch_endpoints(struct ch_sink *s, struct tr_err *err);
void tr_ch_endpoints_done(struct ch_sink *s);
/* Target thread: that the endpoint it is at is what it should be. */
int tr_ch_connect(struct ch_sink *s, int64_t deadline_ns, struct tr_err *err);
/* Members of tr_sink_ops, for the definition as the sink keeps it. */
int tr_ch_bind(struct ch_sink *s, const struct tr_schema *schema, enum tr_target_variant v, uint64_t snapshot_id, int64_t deadline_ns, struct tr_target **ret, struct tr_err *err);
int tr_ch_check(struct ch_sink *s, const struct tr_schema *schema, enum tr_target_variant v, int64_t deadline_ns, struct tr_err *err);
int tr_ch_swap(struct ch_sink *s, const struct tr_schema *schema, uint64_t snapshot_id, int64_t deadline_ns, struct tr_err *err);
int tr_ch_built(struct ch_sink *s, const struct tr_schema *schema, int64_t deadline_ns, uint64_t *ret, struct tr_err *err);
int tr_ch_probe(struct ch_sink *s, int64_t deadline_ns, struct tr_err *err);

extern const struct tr_catalog_ops tr_ch_catalog_ops;

/* ---- ch_shape.c ---- */

/* REJECT: an entry is not of the form "schema.table = text". */
int tr_ch_shape_check(const char *what, const struct tr_ch_options *o, struct tr_err *err);
/* The definition as this sink keeps it. RETRY. */
int tr_ch_as_kept(const struct ch_sink *s, const struct tr_schema *schema, struct tr_schema **ret, struct tr_err *err);
int tr_ch_shape(const struct tr_sqlsink *s, const struct tr_schema *schema, struct tr_want *io, struct tr_err *err); /* tr_sqlsink.shape */

/* ---- ch_table.c ---- */

struct ch_column {
    const struct tr_ch_type *type;
    struct tr_ch_from from;
    struct tr_slice head;      /* name and type as a Native block has them */
};

struct ch_table {
    struct tr_arena arena;     /* of the types */
    enum tr_table_kind kind;
    bool today;                /* the server's (ddl.h) */
    bool append;               /* of the user's: ch_append.c */
    bool partitioned;          /* an INSERT may bring rows of many partitions */
    struct ch_column *columns; /* as the INSERT lists them: ours first in a changelog, last in a mirror */
    uint32_t n, first;         /* of them; the source's first column */
    const struct tr_schema *schema;
    char *insert, *select, *keys; /* statements; keys: the structure of the keys that select is sent */
    char *truncate[2];         /* before what the columns that are ours get, and before the version below which rows go */
    bool native;               /* what insert says that comes; else RowBinary */
    struct tr_slice header;    /* of RowBinaryWithNamesAndTypes; "" for a server that knows none */
    char *parts;               /* asks how many active parts the fullest partition has */
    _Atomic(uint64_t) bound;   /* a bit for each endpoint that has it as it should be; a writer takes back one that has not */
    /* writers: parts are made no faster than the server merges them (ch_writer.c) */
    _Atomic(int64_t) next_ns, ask_ns, gap_ns;
};

int tr_ch_table_new(const struct ch_sink *s, const struct tr_sqltarget *t, enum tr_table_kind kind, struct ch_table **ret, struct tr_err *err);
/* Of the user's: first without columns, which the caller adds with the types that they have; then with its statements. RETRY. */
int tr_ch_table_append(const struct ch_sink *s, const struct tr_schema *schema, struct ch_table **ret, struct tr_err *err);
int tr_ch_table_statements(const struct ch_sink *s, struct ch_table *t, struct tr_err *err);
struct ch_table *tr_ch_table_free(struct ch_table *t);

static inline struct ch_table *tr_ch_table_of(const struct tr_target *t)
{
    return tr_sqltarget_of(t)->own;
}

/* Cells of a row: ends[i] is where cell i ends. Moves c behind the row; false: it is none. */
bool tr_ch_row(const struct ch_table *t, struct tr_cur *c, uint32_t *ends);
/* Of a row of a mirror with tombstones. */
uint64_t tr_ch_row_version(const struct ch_table *t, const uint8_t *row, const uint32_t *ends);
bool tr_ch_row_deleted(const struct ch_table *t, const uint8_t *row, const uint32_t *ends);
int tr_ch_row_key(const struct ch_table *t, const uint8_t *row, const uint32_t *ends, struct tr_buf *out);

/* ---- records ---- */

enum ch_kind { CH_ROW = 1, CH_OPEN, CH_TRUNCATE };
enum ch_how { CH_PATCH, CH_MOVE, CH_TOMBSTONE };

struct ch_record {
    uint8_t kind;
    struct tr_slice body;
};

/* EOF at the end; FATAL: our own bytes are broken. */
int tr_ch_record_next(struct tr_cur *c, struct ch_record *ret, struct tr_err *err);
int tr_ch_record_begin(enum ch_kind kind, struct tr_buf *out); /* NOMEM */
void tr_ch_record_end(struct tr_buf *out, size_t from);

/* ---- ch_append.c ---- */

/* At the endpoint that the target thread is at. */
int tr_ch_append_bind(struct ch_sink *s, const struct tr_schema *schema, int64_t deadline_ns, struct tr_target **ret, struct tr_err *err);
int tr_ch_append_encoder(const struct ch_table *t, struct tr_encoder **ret, struct tr_err *err);

/* ---- the rest ---- */

int tr_ch_encoder_new(struct tr_sink *s, const struct tr_target *t, struct tr_encoder **ret, struct tr_err *err);

struct ch_completer; /* what complete keeps from batch to batch */
struct ch_completer *tr_ch_completer_new(const struct ch_sink *s);
struct ch_completer *tr_ch_completer_free(struct ch_completer *c);
int tr_ch_complete(struct ch_completer *c, struct tr_httpc *h, const struct tr_endpoint *ep, struct tr_sealed *b, int64_t deadline_ns, struct tr_err *err);

struct ch_native; /* a block, and the memory of the one before */
struct ch_native *tr_ch_native_new(void);
struct ch_native *tr_ch_native_free(struct ch_native *b);
/* ret: 1 + 3 * t->n slices, which live until the next block. NOMEM; FATAL: one is no row. */
int tr_ch_native_block(struct ch_native *b, const struct ch_table *t, const struct tr_slice *rows, size_t n, struct tr_slice *ret);

struct ch_packer; /* what compressing keeps from INSERT to INSERT */
struct ch_packer *tr_ch_packer_new(void);
struct ch_packer *tr_ch_packer_free(struct ch_packer *p);
/* The slices as one frame, which out is cleared for. */
int tr_ch_pack(struct ch_packer *p, const struct ch_sink *s, const struct tr_slice *v, size_t n, struct tr_buf *out, struct tr_err *err);

int tr_ch_writer_new(struct ch_sink *s, uint32_t shard, struct tr_writer **ret, struct tr_err *err);

#endif
