/* ch_pack.c: what is sent, compressed: one frame of zstd or LZ4, in the formats of Content-Encoding. */
#include <lz4frame.h>
#include <zstd.h>

#include "alloc.h"
#include "ch_sink.h"

enum { ZSTD_LEVEL = 1, STEP = 256 << 10 }; /* of LZ4, which says beforehand how much room so many bytes may need */

struct ch_packer {
    ZSTD_CCtx *zstd;
    LZ4F_cctx *lz4;
};

static int broken(const char *what, const char *why, struct tr_err *err)
{
    return tr_err_set(err, TR_FATAL, TR_DOM_SINK, "%s: compressing failed: %s", what, why);
}

static int no_memory(const char *what, struct tr_err *err)
{
    return tr_err_set(err, TR_RETRY, TR_DOM_SINK, "%s: no memory to compress a batch", what);
}

static int pack_zstd(struct ch_packer *p, const char *what, const struct tr_slice *v, size_t n, struct tr_buf *out, struct tr_err *err)
{
    if (!p->zstd && !(p->zstd = ZSTD_createCCtx()))
        return no_memory(what, err);
    ZSTD_CCtx_reset(p->zstd, ZSTD_reset_session_only);
    ZSTD_CCtx_setParameter(p->zstd, ZSTD_c_compressionLevel, ZSTD_LEVEL);
    for (size_t i = 0; i <= n; i++) { /* the last time to end the frame */
        ZSTD_inBuffer in = {i < n ? v[i].p : NULL, i < n ? v[i].n : 0, 0};
        size_t left;
        do {
            if (tr_buf_reserve(out, ZSTD_CStreamOutSize()) < 0)
                return no_memory(what, err);
            ZSTD_outBuffer to = {out->p, out->cap, out->n};
            left = ZSTD_compressStream2(p->zstd, &to, &in, i < n ? ZSTD_e_continue : ZSTD_e_end);
            if (ZSTD_isError(left))
                return broken(what, ZSTD_getErrorName(left), err);
            out->n = to.pos;
        } while (in.pos < in.size || (i == n && left));
    }
    return TR_OK;
}

/* What a call of LZ4's appended. */
static int grown(const char *what, size_t rc, struct tr_buf *out, struct tr_err *err)
{
    if (LZ4F_isError(rc))
        return broken(what, LZ4F_getErrorName(rc), err);
    out->n += rc;
    return TR_OK;
}

static int pack_lz4(struct ch_packer *p, const char *what, const struct tr_slice *v, size_t n, struct tr_buf *out, struct tr_err *err)
{
    static const LZ4F_preferences_t how = {.frameInfo = {.blockSizeID = LZ4F_max256KB}};
    size_t room = LZ4F_compressBound(STEP, &how);
    if ((!p->lz4 && LZ4F_isError(LZ4F_createCompressionContext(&p->lz4, LZ4F_VERSION))) || tr_buf_reserve(out, room) < 0)
        return no_memory(what, err);
    int rc = grown(what, LZ4F_compressBegin(p->lz4, out->p + out->n, out->cap - out->n, &how), out, err);
    for (size_t i = 0; i < n && rc >= 0; i++)
        for (size_t at = 0; at < v[i].n && rc >= 0; at += STEP) {
            size_t k = v[i].n - at < STEP ? v[i].n - at : STEP;
            rc = tr_buf_reserve(out, room) < 0 ? no_memory(what, err) : grown(what, LZ4F_compressUpdate(p->lz4, out->p + out->n, out->cap - out->n, v[i].p + at, k, NULL), out, err);
        }
    if (rc >= 0 && tr_buf_reserve(out, room) < 0)
        rc = no_memory(what, err);
    return rc >= 0 ? grown(what, LZ4F_compressEnd(p->lz4, out->p + out->n, out->cap - out->n, NULL), out, err) : rc;
}

int tr_ch_pack(struct ch_packer *p, const struct ch_sink *s, const struct tr_slice *v, size_t n, struct tr_buf *out, struct tr_err *err)
{
    tr_buf_clear(out);
    return (s->o->compression == TR_CH_LZ4 ? pack_lz4 : pack_zstd)(p, s->sql.what, v, n, out, err);
}

struct ch_packer *tr_ch_packer_new(void)
{
    return tr_calloc(1, sizeof(struct ch_packer));
}

struct ch_packer *tr_ch_packer_free(struct ch_packer *p)
{
    if (p) {
        ZSTD_freeCCtx(p->zstd);
        LZ4F_freeCompressionContext(p->lz4);
    }
    tr_free(p);
    return NULL;
}
