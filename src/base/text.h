/* text.h - parsing and formatting of the small texts that config, SQL and logs are made of.
 *
 * Purpose: durations, sizes, booleans, LSNs, quoting, hex, JSON strings, UTF-8, table patterns.
 * Owner:   nothing is kept; outputs go to the caller's buffers.
 * Threads: any.
 * Errors:  parsers return TR_REJECT in TR_DOM_CONFIG with a message that quotes the text and shows the right
 *          form; they do not know the setting's name: the caller adds it with tr_err_where. Appenders return TR_NOMEM.
 *
 * Grammar
 *   duration = "0" | 1*( digits unit )       unit = ns | us | ms | s | m | h | d     "250ms" "1h30m" "7d"
 *   size     = digits [unit]                 unit = B | k K Ki KiB | M Mi MiB | G Gi GiB | T Ti TiB  (powers of 1024)
 *                                                 | kB | MB | GB | TB                               (powers of 1000)
 *   bool     = true | false | yes | no | on | off     (any case)
 *   lsn      = 1*8HEX "/" 1*8HEX             PostgreSQL's pg_lsn
 *   pattern  = [ schema "." ] table, where "*" stands for any run of characters and "\" takes the next one
 *              literally. Without a dot any schema matches. The pattern is split at its first unescaped dot.
 */
#ifndef TR_TEXT_H
#define TR_TEXT_H

#include <tailrace/buf.h>
#include <tailrace/err.h>
#include <tailrace/slice.h>

enum { TR_DURATION_CHARS = 32, TR_SIZE_CHARS = 32, TR_LSN_CHARS = 18, TR_UTC_CHARS = 64 };

int tr_parse_duration(struct tr_slice s, int64_t *ret_ns, struct tr_err *err);
int tr_parse_size(struct tr_slice s, uint64_t *ret_bytes, struct tr_err *err);
int tr_parse_bool(struct tr_slice s, bool *ret, struct tr_err *err);
int tr_parse_lsn(struct tr_slice s, uint64_t *ret, struct tr_err *err);
/* Decimal integers, the whole slice, optional sign for i64. */
int tr_parse_u64(struct tr_slice s, uint64_t *ret, struct tr_err *err);
int tr_parse_i64(struct tr_slice s, int64_t *ret, struct tr_err *err);

/* All return out. What they write parses back to the same value: the largest unit without a remainder. */
char *tr_format_duration(int64_t ns, char out[TR_DURATION_CHARS]);
char *tr_format_size(uint64_t bytes, char out[TR_SIZE_CHARS]);
char *tr_format_lsn(uint64_t lsn, char out[TR_LSN_CHARS]);
/* Unix microseconds as "YYYY-MM-DD hh:mm:ss.ffffff" in UTC, as databases read it; before 1970 as well. */
char *tr_format_utc(int64_t us, char out[TR_UTC_CHARS]);

/* "name" with inner quotes doubled. TR_REJECT for an empty name or one with a NUL. */
int tr_quote_ident(struct tr_buf *b, struct tr_slice name);
/* 'text' for PostgreSQL: quotes doubled, and as E'' with doubled backslashes if there are any, so that it means the
 * same whatever standard_conforming_strings says. TR_REJECT for a NUL. */
int tr_quote_literal(struct tr_buf *b, struct tr_slice text);

/* Insertions, deletions, replacements and swaps of neighbours; ASCII case is ignored. Texts beyond 64
 * bytes are infinitely far (SIZE_MAX). */
size_t tr_edit_distance(struct tr_slice a, struct tr_slice b);
/* The nearest of names, for "unknown key 'x'; did you mean 'y'?"; NULL if none is near. */
const char *tr_nearest(struct tr_slice s, const char *const *names, size_t n);

/* "*" and "\" as in pattern above, over the whole of text; dots are ordinary. Linear space, no recursion. */
bool tr_glob(struct tr_slice pattern, struct tr_slice text);
bool tr_glob_table(struct tr_slice pattern, struct tr_slice schema, struct tr_slice table);

/* Well formed: no overlong forms, no surrogates, nothing above U+10FFFF. */
bool tr_utf8_valid(struct tr_slice s);

/* The inside of a JSON string; with quotes in the second form. Each byte that is not UTF-8 becomes U+FFFD. */
int tr_json_escape(struct tr_buf *b, struct tr_slice s);
int tr_json_string(struct tr_buf *b, struct tr_slice s);

int tr_hex_encode(struct tr_buf *b, struct tr_slice s); /* lower case */
/* TR_REJECT for an odd count or another character; either case. Nothing is appended then. */
int tr_hex_decode(struct tr_buf *b, struct tr_slice hex);

#endif
