/*
 * frame.h: a tr_change as the change log stores it. A persisted format (docs/formats/frame.md); all integers little-endian.
 *
 *   frame  = u32 length   bytes after this field
 *            u32 crc      CRC32C over everything after this field
 *            u8 op  u8 flags  u8 epoch  u8 kind      kind: 0 ordinary, 1 repeated definition (no offset of its own)
 *            body
 *   body   = varint: table_id, schema_version, version, commit_lsn, change_lsn, end_lsn, xid, ordinal, snapshot_id
 *            varint(zigzag): commit_us, capture_us
 *            varint(length) bytes: key, old_key, before image, after image, message
 *   SCHEMA frames carry the encoded definition in message.
 *
 * Encoding is done once, on the pipeline thread; the log copies the bytes.
 */
#ifndef TR_FRAME_CODEC_H
#define TR_FRAME_CODEC_H

#include <tailrace/change.h>

#define TR_FRAME_HEADER 12
#define TR_FRAME_MAX (1u << 30) /* a frame is at most 1 GiB */

enum { TR_FRAME_ORDINARY = 0, TR_FRAME_REPEAT = 1 };

/* What can be learnt without decoding the body. */
struct tr_frame_head {
    uint32_t length; /* whole frame, header included */
    uint8_t op, flags, epoch, kind;
};

struct tr_frame_body {
    struct tr_frame_head head;
    struct tr_change change;          /* schema is NULL, rows are not decoded */
    uint32_t table_id, schema_version;
    struct tr_slice old_image, image; /* before, after */
};

/* The row images are made from c->before and c->after (n == 0: none). table_id and schema_version from c->schema when set. */
int tr_frame_encode(const struct tr_change *c, struct tr_buf *out, struct tr_err *err);
int tr_frame_encode_schema(const struct tr_schema *s, uint8_t epoch, uint8_t kind, struct tr_buf *out, struct tr_err *err);

/* bytes starts at a frame. peek: AGAIN when bytes hold no whole frame, REJECT when they cannot be one; does not check the CRC.
 * decode: REJECT for a bad CRC or a malformed body. */
int tr_frame_peek(struct tr_slice bytes, struct tr_frame_head *ret, struct tr_err *err);
int tr_frame_decode(struct tr_slice bytes, struct tr_frame_body *ret, struct tr_err *err);

#endif
