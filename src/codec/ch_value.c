#include "ch_value.h"

#include <tailrace/schema.h>

#include "check.h"
#include "decfloat.h"
#include "digits.h"
#include "pgitems.h"

typedef unsigned __int128 u128;

static int refuse(const struct tr_ch_type *t, const char *why, struct tr_err *err)
{
    struct tr_slice name = tr_slice_sub(t->text, 0, 80);
    return tr_err_set(err, TR_REJECT, TR_DOM_SCHEMA, "a value does not fit ClickHouse type %" TR_SLICE_FMT "%s: %s", TR_SLICE_ARG(name), t->text.n > name.n ? "…" : "", why);
}

/* Scalars write t->width bytes and return NULL, or why not. */

static bool is_digit(uint8_t c)
{
    return (uint8_t)(c - '0') < 10;
}

static void put_le(uint8_t *out, uint64_t v, uint32_t width)
{
    v = htole64(v);
    memcpy(out, &v, width);
}

/* ---- integers ---- */

static const char not_integer[] = "it is no integer", out_of_range[] = "it is out of range";

struct wide {
    uint64_t limb[4];
};

static bool wide_multiply_add(struct wide *v, uint64_t by, uint64_t add)
{
    u128 carry = add;
    for (int i = 0; i < 4; i++) {
        carry += (u128)v->limb[i] * by;
        v->limb[i] = (uint64_t)carry;
        carry >>= 64;
    }
    return carry == 0;
}

static void wide_negate(struct wide *v)
{
    unsigned carry = 1;
    for (int i = 0; i < 4; i++) {
        v->limb[i] = ~v->limb[i] + carry;
        carry = carry && !v->limb[i];
    }
}

static void wide_put(const struct wide *v, uint8_t *out, uint32_t width)
{
    for (uint32_t i = 0; i * 8 < width; i++)
        put_le(out + i * 8, v->limb[i], 8);
}

/* Only digits, at least one; false if not or if they are more than 256 bits hold. */
static const char *wide_digits(const uint8_t *p, const uint8_t *end, struct wide *v)
{
    static const uint64_t power[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
    *v = (struct wide){{0}};
    if (p == end)
        return not_integer;
    while (p < end) {
        uint32_t n = 0, chunk = 0;
        for (; n < 8 && p < end; n++, p++) {
            if (!is_digit(*p))
                return not_integer;
            chunk = chunk * 10 + (uint32_t)(*p - '0');
        }
        if (!wide_multiply_add(v, power[n], chunk))
            return out_of_range;
    }
    return NULL;
}

static const char *put_wide(struct tr_slice s, bool is_signed, uint32_t width, uint8_t *out)
{
    bool minus = s.n && s.p[0] == '-';
    struct wide v;
    const char *why = wide_digits(s.p + minus, s.p + s.n, &v);
    if (why)
        return why;
    uint32_t top = width / 8 - 1;
    uint64_t above = 0, low = 0;
    for (uint32_t i = top + 1; i < 4; i++)
        above |= v.limb[i];
    for (uint32_t i = 0; i < top; i++)
        low |= v.limb[i];
    bool high = v.limb[top] >> 63, least = high && !low && v.limb[top] == UINT64_C(1) << 63;
    if (above || (is_signed && high && !(minus && least)) || (!is_signed && minus && (low || v.limb[top])))
        return out_of_range;
    if (minus)
        wide_negate(&v);
    wide_put(&v, out, width);
    return NULL;
}

static inline const char *put_int(struct tr_slice s, bool is_signed, uint32_t width, uint8_t *out)
{
    bool minus = s.n && s.p[0] == '-';
    const uint8_t *p = s.p + minus, *end = s.p + s.n;
    uint64_t v = 0, most = UINT64_MAX >> (64 - width * 8 + is_signed);
    if (p == end)
        return not_integer;
    if (TR_LIKELY(end - p <= 19)) {
        for (uint32_t chunk; end - p >= 8; p += 8) {
            if (!tr_digits8(p, &chunk))
                return not_integer;
            v = v * 100000000 + chunk;
        }
        for (; p < end; p++) {
            if (!is_digit(*p))
                return not_integer;
            v = v * 10 + (uint64_t)(*p - '0');
        }
    } else {
        struct wide w;
        const char *why = wide_digits(p, end, &w);
        if (why)
            return why;
        if (w.limb[1] | w.limb[2] | w.limb[3])
            return out_of_range;
        v = w.limb[0];
    }
    if (v > (minus ? (is_signed ? most + 1 : 0) : most))
        return out_of_range;
    put_le(out, minus ? 0 - v : v, width);
    return NULL;
}

static const char *put_bool(struct tr_slice s, uint8_t *out)
{
    if (tr_slice_eq_str(s, "t") || tr_slice_eq_str(s, "true"))
        *out = 1;
    else if (tr_slice_eq_str(s, "f") || tr_slice_eq_str(s, "false"))
        *out = 0;
    else
        return "it is neither t nor f";
    return NULL;
}

static const char *put_any_int(const struct tr_ch_type *t, uint8_t from, struct tr_slice s, bool is_signed, uint8_t *out)
{
    uint8_t one;
    if (from == TR_TYPE_BOOL) {
        const char *why = put_bool(s, &one);
        if (why)
            return why;
        s = tr_slice_str(one ? "1" : "0");
    }
    return t->width > 8 ? put_wide(s, is_signed, t->width, out) : put_int(s, is_signed, t->width, out);
}

/* ---- decimals ---- */

static const char *not_decimal = "it is no decimal number";

static const char *put_decimal(const struct tr_ch_type *t, struct tr_slice s, uint8_t *out)
{
    uint8_t digits[80]; /* 76 of value, none of them leading zeros */
    uint32_t n = 0, behind = 0;
    bool minus = s.n && s.p[0] == '-', point = false, any = false;
    for (const uint8_t *p = s.p + minus, *end = s.p + s.n; p < end; p++) {
        if (*p == '.' && any && !point) {
            point = true;
            any = false;
            continue;
        }
        if (!is_digit(*p))
            return tr_slice_eq_str(s, "NaN") || tr_slice_eq_str(tr_slice_sub(s, minus, s.n), "Infinity") ? "it is NaN or infinite" : not_decimal;
        any = true;
        if (point && ++behind > t->scale) {
            if (*p != '0')
                return "it has more digits behind the point";
            continue;
        }
        if (n == t->precision)
            return out_of_range;
        digits[n] = *p;
        n += n || *p != '0';
    }
    if (!any)
        return not_decimal;
    for (; behind < t->scale; behind++) {
        if (n == t->precision)
            return out_of_range;
        digits[n] = '0';
        n += n != 0;
    }
    struct wide v = {{0}};
    if (n <= 19)
        for (uint32_t i = 0; i < n; i++)
            v.limb[0] = v.limb[0] * 10 + (uint64_t)(digits[i] - '0');
    else
        wide_digits(digits, digits + n, &v);
    if (minus)
        wide_negate(&v);
    if (t->width < 8)
        put_le(out, v.limb[0], t->width);
    else
        wide_put(&v, out, t->width);
    return NULL;
}

/* ---- floats ---- */

/* Text that a float type of the source printed stands for that float, and has 17 digits at most, 9 of a float4; what is OPAQUE may be such text. Any
 * other must come back from the float: 15 digits do from a Float64, 6 from a Float32. */
static const char *put_float(const struct tr_ch_type *t, uint8_t from, struct tr_slice s, uint8_t *out)
{
    static const char precision[] = "it has more digits than it can keep";
    struct tr_decfloat d;
    bool is64 = t->kind == TR_CH_FLOAT64;
    if (!tr_decfloat_scan(s, &d))
        return "it is no number";
    uint64_t v64 = tr_decfloat_f64(&d);
    uint32_t v32 = is64 ? 0 : tr_decfloat_f32(&d);
    if (d.kind == 'n') {
        bool infinite = is64 ? v64 << 1 == UINT64_C(0x7ff) << 53 : v32 << 1 == 0xffu << 24, zero = is64 ? !(v64 << 1) : !(v32 << 1);
        if (infinite || (zero && d.w))
            return out_of_range;
        if (from == TR_TYPE_FLOAT64 && !is64) {
            float narrow;
            double wide;
            memcpy(&narrow, &v32, sizeof narrow);
            memcpy(&wide, &v64, sizeof wide);
            if ((double)narrow < wide || (double)narrow > wide)
                return precision;
        } else if (from != TR_TYPE_FLOAT64 && from != TR_TYPE_FLOAT32) {
            bool integer = d.exp10 == 0 && d.digits <= 19 && d.w <= (is64 ? UINT64_C(1) << 53 : UINT64_C(1) << 24);
            uint32_t most = from == TR_TYPE_OPAQUE ? (is64 ? 17 : 9) : (is64 ? 15 : 6);
            if (!integer && d.digits > most)
                return precision;
        }
    }
    put_le(out, is64 ? v64 : v32, t->width);
    return NULL;
}

/* ---- dates and times ---- */

static const char infinite[] = "it is infinite", no_date[] = "it is no date", no_time[] = "it is no time of day", no_timestamp[] = "it is no timestamp";
static const char more_fraction[] = "it has more digits of a second";

static const uint32_t power10[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000};

/* Two digits, or 100 or more. */
static inline uint32_t two(const uint8_t *p)
{
    uint32_t a = (uint32_t)(p[0] - '0'), b = (uint32_t)(p[1] - '0');
    return a > 9 || b > 9 ? 100 : a * 10 + b;
}

static int64_t days_of(int64_t year, uint32_t month, uint32_t day)
{
    year -= month <= 2;
    int64_t era = (year >= 0 ? year : year - 399) / 400;
    uint32_t of_era = (uint32_t)(year - era * 400), of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
    return era * 146097 + (int64_t)(of_era * 365 + of_era / 4 - of_era / 100 + of_year) - 719468;
}

/* YYYY-MM-DD at s.p; what follows it stays. */
static inline const char *take_date(struct tr_slice *s, int64_t *ret_days)
{
    static const uint8_t in_month[] = {0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const uint8_t *p = s->p;
    if (s->n < 10 || p[4] != '-' || p[7] != '-') {
        bool minus = s->n && p[0] == '-';
        if (tr_slice_eq_str(tr_slice_sub(*s, minus, s->n), "infinity"))
            return infinite;
        size_t digits = 0;
        while (digits < s->n && is_digit(p[digits]))
            digits++;
        return digits > 4 && digits < s->n && p[digits] == '-' ? out_of_range : no_date;
    }
    uint32_t hi = two(p), lo = two(p + 2), month = two(p + 5), day = two(p + 8);
    uint32_t year = hi * 100 + lo;
    if (hi > 99 || lo > 99 || month - 1 > 11 || day - 1 >= in_month[month] || (month == 2 && day == 29 && (year % 4 || (year % 100 == 0 && year % 400))))
        return no_date;
    *s = tr_slice_sub(*s, 10, s->n);
    if (tr_slice_has_prefix(*s, tr_slice_of(" BC", 3)) || (s->n > 3 && tr_slice_eq_str(tr_slice_sub(*s, s->n - 3, s->n), " BC")))
        return "it is before Christ";
    *ret_days = days_of(year, month, day);
    return NULL;
}

/* HH:MM:SS[.digits] at s.p, as seconds and billionths; what follows stays. */
static inline const char *take_time(struct tr_slice *s, uint32_t *ret_seconds, uint32_t *ret_ns)
{
    const uint8_t *p = s->p, *end = s->p + s->n;
    if (s->n < 8 || p[2] != ':' || p[5] != ':')
        return no_time;
    uint32_t hour = two(p), minute = two(p + 3), second = two(p + 6), ns = 0, n = 0;
    if (hour > 24 || minute > 59 || second > 59)
        return no_time;
    p += 8;
    if (p < end && *p == '.') {
        for (p++; p < end && is_digit(*p) && n < 9; p++, n++)
            ns = ns * 10 + (uint32_t)(*p - '0');
        if (!n || (p < end && is_digit(*p)))
            return no_time;
        ns *= power10[9 - n];
    }
    *s = tr_slice_of(p, (size_t)(end - p));
    *ret_seconds = hour * 3600 + minute * 60 + second;
    *ret_ns = ns;
    return *ret_seconds > 86400 || (*ret_seconds == 86400 && ns) ? no_time : NULL;
}

/* +HH[:MM[:SS]] at s.p, or nothing, which is UTC. */
static const char *take_offset(struct tr_slice *s, int32_t *ret_seconds)
{
    int32_t v = 0, unit = 3600;
    *ret_seconds = 0;
    if (!s->n)
        return NULL;
    bool minus = s->p[0] == '-';
    if (!minus && s->p[0] != '+')
        return no_timestamp;
    do {
        if (s->n < 3 || two(s->p + 1) > 59)
            return no_timestamp;
        v += (int32_t)two(s->p + 1) * unit;
        unit /= 60;
        *s = tr_slice_sub(*s, 3, s->n);
    } while (s->n && s->p[0] == ':' && unit);
    *ret_seconds = minus ? -v : v;
    return s->n ? no_timestamp : NULL;
}

static const char *put_date(const struct tr_ch_type *t, struct tr_slice s, uint8_t *out)
{
    int64_t days;
    const char *why = take_date(&s, &days);
    if (why)
        return why;
    if (s.n)
        return no_date;
    bool date32 = t->kind == TR_CH_DATE32;
    if (days < (date32 ? -25567 : 0) || days > (date32 ? 120529 : UINT16_MAX)) /* 1900-01-01 … 2299-12-31; 2149-06-06 */
        return out_of_range;
    put_le(out, (uint64_t)days, t->width);
    return NULL;
}

/* Ticks of 10^-scale s. */
static const char *scaled(int64_t seconds, uint32_t ns, uint8_t scale, int64_t *ret)
{
    if (ns % power10[9 - scale])
        return more_fraction;
    return __builtin_mul_overflow(seconds, (int64_t)power10[scale], ret) || __builtin_add_overflow(*ret, (int64_t)(ns / power10[9 - scale]), ret) ? out_of_range : NULL;
}

static const char *put_timestamp(const struct tr_ch_type *t, struct tr_slice s, uint8_t *out)
{
    int64_t days, ticks;
    uint32_t of_day, ns;
    int32_t offset = 0;
    const char *why = take_date(&s, &days);
    if (why)
        return why == no_date ? no_timestamp : why;
    if (!s.n || s.p[0] != ' ')
        return no_timestamp;
    s = tr_slice_sub(s, 1, s.n);
    if ((why = take_time(&s, &of_day, &ns)))
        return no_timestamp;
    if (s.n == 3 && memcmp(s.p, "+00", 3) == 0)
        s.n = 0;
    if (s.n && (why = take_offset(&s, &offset)))
        return why;
    int64_t seconds = days * 86400 + of_day - offset;
    if (t->kind == TR_CH_DATETIME) {
        if (ns)
            return more_fraction;
        if (seconds < 0 || seconds > UINT32_MAX)
            return out_of_range;
        put_le(out, (uint64_t)seconds, 4);
        return NULL;
    }
    if (seconds < INT64_C(-2208988800) || seconds > INT64_C(10413791999)) /* 1900-01-01 … 2299-12-31 23:59:59 */
        return out_of_range;
    if ((why = scaled(seconds, ns, t->scale, &ticks)))
        return why;
    put_le(out, (uint64_t)ticks, 8);
    return NULL;
}

static const char *put_time(const struct tr_ch_type *t, struct tr_slice s, uint8_t *out)
{
    int64_t ticks;
    uint32_t seconds, ns;
    const char *why = take_time(&s, &seconds, &ns);
    if (why)
        return why;
    if (s.n)
        return no_time;
    if ((why = scaled(seconds, ns, t->scale, &ticks)))
        return why;
    put_le(out, (uint64_t)ticks, t->width);
    return NULL;
}

/* ---- UUID, addresses, strings, enums ---- */

enum { HEX = 0x10 }; /* set where a byte is a hex digit, whose value the low bits are */
#define D(c, v) [c] = HEX | (v)
static const uint8_t hex_digit[256] = {
    D('0', 0),  D('1', 1),  D('2', 2),  D('3', 3),  D('4', 4),  D('5', 5),  D('6', 6),  D('7', 7),  D('8', 8),  D('9', 9),  D('a', 10),
    D('b', 11), D('c', 12), D('d', 13), D('e', 14), D('f', 15), D('A', 10), D('B', 11), D('C', 12), D('D', 13), D('E', 14), D('F', 15),
};
#undef D

static inline bool hex_bytes(const uint8_t *p, size_t n, uint8_t *out)
{
    uint8_t all = HEX;
    for (size_t i = 0; i < n; i++) {
        uint8_t hi = hex_digit[p[2 * i]], lo = hex_digit[p[2 * i + 1]];
        all &= hi & lo;
        out[i] = (uint8_t)(hi << 4 | (lo & 15));
    }
    return all;
}

static const char *put_uuid(struct tr_slice s, uint8_t *out)
{
    uint8_t b[16];
    const uint8_t *p = s.p;
    if (s.n != 36 || p[8] != '-' || p[13] != '-' || p[18] != '-' || p[23] != '-' || !hex_bytes(p, 4, b) || !hex_bytes(p + 9, 2, b + 4) ||
        !hex_bytes(p + 14, 2, b + 6) || !hex_bytes(p + 19, 2, b + 8) || !hex_bytes(p + 24, 6, b + 10))
        return "it is no UUID";
    for (int half = 0; half < 2; half++) {
        uint64_t v;
        memcpy(&v, b + half * 8, 8);
        put_le(out + half * 8, be64toh(v), 8);
    }
    return NULL;
}

static bool take_ipv4(struct tr_slice s, uint32_t *ret)
{
    uint32_t v = 0;
    size_t i = 0;
    for (int part = 0; part < 4; part++) {
        uint32_t n = 0;
        if (part && (i == s.n || s.p[i++] != '.'))
            return false;
        size_t from = i;
        for (; i < s.n && is_digit(s.p[i]) && i - from < 3; i++)
            n = n * 10 + (uint32_t)(s.p[i] - '0');
        if (i == from || n > 255 || (s.p[from] == '0' && i - from > 1))
            return false;
        v = v << 8 | n;
    }
    *ret = v;
    return i == s.n;
}

static bool take_ipv6(struct tr_slice s, uint8_t *out)
{
    uint8_t groups[16];
    size_t n = 0, gap = SIZE_MAX, i = 0;
    if (s.n >= 2 && s.p[0] == ':' && s.p[1] == ':') {
        gap = 0;
        i = 2;
    }
    while (i < s.n) {
        uint32_t v = 0, v4;
        size_t from = i;
        if ((n || gap == 0) && n <= 12 && take_ipv4(tr_slice_sub(s, i, s.n), &v4)) {
            for (int k = 0; k < 4; k++)
                groups[n++] = (uint8_t)(v4 >> (24 - 8 * k));
            break;
        }
        for (; i < s.n && i - from < 4 && hex_digit[s.p[i]]; i++)
            v = v << 4 | (hex_digit[s.p[i]] & 15);
        if (i == from || n == 16)
            return false;
        groups[n++] = (uint8_t)(v >> 8);
        groups[n++] = (uint8_t)v;
        if (i == s.n)
            break;
        if (s.p[i++] != ':' || i == s.n)
            return false;
        if (s.p[i] == ':') {
            if (gap != SIZE_MAX)
                return false;
            gap = n;
            i++;
        }
    }
    if (gap == SIZE_MAX ? n != 16 : n > 14)
        return false;
    if (gap == SIZE_MAX)
        gap = n;
    memset(out, 0, 16);
    memcpy(out, groups, gap);
    memcpy(out + 16 - (n - gap), groups + gap, n - gap);
    return true;
}

static const char *put_address(const struct tr_ch_type *t, struct tr_slice s, uint8_t *out)
{
    uint32_t v4;
    if (s.n && memchr(s.p, '/', s.n))
        return "it has a netmask";
    if (t->kind == TR_CH_IPV6)
        return take_ipv6(s, out) ? NULL : "it is no IPv6 address";
    if (!take_ipv4(s, &v4))
        return "it is no IPv4 address";
    put_le(out, v4, 4);
    return NULL;
}

static const char no_bytea[] = "it is no bytea in hex";

static bool is_bytea(struct tr_slice s)
{
    return s.n >= 2 && s.p[0] == '\\' && s.p[1] == 'x' && s.n % 2 == 0;
}

/* Text may be shorter: PostgreSQL's holds no NUL, so that the padding can be told from it. */
static const char *put_fixed(const struct tr_ch_type *t, uint8_t from, struct tr_slice s, uint8_t *out)
{
    if (from == TR_TYPE_BYTES) {
        if (!is_bytea(s))
            return no_bytea;
        if (s.n / 2 - 1 != t->width)
            return "its length is another";
        return hex_bytes(s.p + 2, t->width, out) ? NULL : no_bytea;
    }
    if (s.n > t->width)
        return "it is longer";
    memcpy(out, s.p, s.n);
    memset(out + s.n, 0, t->width - s.n);
    return NULL;
}

static const char *put_enum(const struct tr_ch_type *t, struct tr_slice s, uint8_t *out)
{
    int16_t v;
    if (!tr_ch_type_member(t, s, &v))
        return "it is no member";
    put_le(out, (uint64_t)(int64_t)v, t->width);
    return NULL;
}

static inline int append_string(const struct tr_ch_type *t, uint8_t from, struct tr_slice s, struct tr_buf *out, struct tr_err *err)
{
    size_t n0 = out->n;
    if (tr_buf_reserve(out, s.n + TR_VARINT_MAX) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SCHEMA, "no memory for a value of %zu bytes", s.n);
    if (from != TR_TYPE_BYTES) {
        tr_buf_put_varint(out, s.n);
        tr_buf_put(out, s.p, s.n);
        return TR_OK;
    }
    if (!is_bytea(s))
        return refuse(t, no_bytea, err);
    tr_buf_put_varint(out, s.n / 2 - 1);
    if (!hex_bytes(s.p + 2, s.n / 2 - 1, out->p + out->n)) {
        out->n = n0;
        return refuse(t, no_bytea, err);
    }
    out->n += s.n / 2 - 1;
    return TR_OK;
}

/* ---- by kind ---- */

static const char *put(const struct tr_ch_type *t, uint8_t from, struct tr_slice s, uint8_t *out)
{
    switch (t->kind) {
    case TR_CH_BOOL:
        return put_bool(s, out);
    case TR_CH_INT8:
    case TR_CH_INT16:
    case TR_CH_INT32:
    case TR_CH_INT64:
    case TR_CH_INT128:
    case TR_CH_INT256:
        return put_any_int(t, from, s, true, out);
    case TR_CH_UINT8:
    case TR_CH_UINT16:
    case TR_CH_UINT32:
    case TR_CH_UINT64:
    case TR_CH_UINT128:
    case TR_CH_UINT256:
        return put_any_int(t, from, s, false, out);
    case TR_CH_FLOAT32:
    case TR_CH_FLOAT64:
        return put_float(t, from, s, out);
    case TR_CH_DECIMAL:
        return put_decimal(t, s, out);
    case TR_CH_FIXED_STRING:
        return put_fixed(t, from, s, out);
    case TR_CH_DATE:
    case TR_CH_DATE32:
        return put_date(t, s, out);
    case TR_CH_DATETIME:
    case TR_CH_DATETIME64:
        return put_timestamp(t, s, out);
    case TR_CH_TIME:
    case TR_CH_TIME64:
        return put_time(t, s, out);
    case TR_CH_UUID:
        return put_uuid(s, out);
    case TR_CH_IPV4:
    case TR_CH_IPV6:
        return put_address(t, s, out);
    case TR_CH_ENUM8:
    case TR_CH_ENUM16:
        return put_enum(t, s, out);
    default:
        TR_UNREACHABLE();
    }
}

int tr_ch_value_append(const struct tr_ch_type *t, uint8_t from, struct tr_slice text, struct tr_buf *out, struct tr_err *err)
{
    if (!text.p)
        text = tr_slice_str("");
    if (t->kind == TR_CH_STRING)
        return append_string(t, from, text, out, err);
    if (tr_buf_reserve(out, t->width) < 0)
        return tr_err_set(err, TR_NOMEM, TR_DOM_SCHEMA, "no memory for a value of %u bytes", t->width);
    const char *why = put(t, from, text, out->p + out->n);
    if (why)
        return refuse(t, why, err);
    out->n += t->width;
    return TR_OK;
}

int tr_ch_value_append_default(const struct tr_ch_type *t, struct tr_buf *out)
{
    uint32_t width = t->kind == TR_CH_STRING ? 1 : t->width;
    if (tr_buf_reserve(out, width) < 0)
        return TR_NOMEM;
    uint8_t *p = out->p + out->n;
    memset(p, 0, width);
    if (t->kind == TR_CH_ENUM8 || t->kind == TR_CH_ENUM16) {
        int16_t least = INT16_MAX;
        for (uint32_t i = 0; i < t->n; i++)
            least = TR_MIN(least, t->members[i].value);
        put_le(p, (uint64_t)(int64_t)least, width);
    } else if (t->kind == TR_CH_DATE32) {
        put_le(p, (uint64_t)INT64_C(-25567), width);
    }
    out->n += width;
    return TR_OK;
}

int tr_ch_value_no_null(const struct tr_ch_type *t, struct tr_err *err)
{
    return refuse(t, "it is NULL", err);
}

/* ---- parts ---- */

static int array_parts(const struct tr_ch_type *t, struct tr_ch_from from, struct tr_pg_items *it, tr_ch_part_fn part, void *ctx, uint64_t *ret_n, struct tr_err *err)
{
    struct tr_pg_item item;
    bool inner_array = t->of[0]->value->kind == TR_CH_ARRAY;
    struct tr_ch_from of = {inner_array ? TR_TYPE_ARRAY : from.element, from.element};
    int rc;
    *ret_n = 0;
    while ((rc = tr_pg_items_next(it, &item)) > 0) {
        if (item.array && !inner_array)
            return refuse(t, "its array has more dimensions", err);
        rc = part(ctx, 0, item.null ? NULL : &item.text, of, it->scratch, err);
        if (rc < 0)
            return rc;
        ++*ret_n;
    }
    return rc < 0 ? refuse(t, it->why, err) : TR_OK;
}

static int other_parts(const struct tr_ch_type *t, struct tr_pg_items *it, tr_ch_part_fn part, void *ctx, uint64_t *ret_n, struct tr_err *err)
{
    static const struct tr_ch_from of = {TR_TYPE_OPAQUE, TR_TYPE_OPAQUE};
    struct tr_pg_item item;
    bool map = t->kind == TR_CH_MAP;
    uint64_t n = 0;
    int rc;
    while ((rc = tr_pg_items_next(it, &item)) > 0) {
        if (!map && n == t->n)
            return refuse(t, "it has more items", err);
        rc = part(ctx, (uint32_t)(map ? n & 1 : n), item.null ? NULL : &item.text, of, it->scratch, err);
        if (rc < 0)
            return rc;
        n++;
    }
    if (rc < 0)
        return refuse(t, it->why, err);
    if (!map && n < t->n)
        return refuse(t, "it has fewer items", err);
    *ret_n = map ? n / 2 : n;
    return TR_OK;
}

int tr_ch_value_parts(const struct tr_ch_type *t, struct tr_ch_from from, struct tr_slice text, uint8_t *scratch, tr_ch_part_fn part, void *ctx, uint64_t *ret_n,
                      struct tr_err *err)
{
    struct tr_pg_items it;
    if (!text.p)
        text = tr_slice_str("");
    tr_pg_items_begin(&it, t->kind == TR_CH_ARRAY ? TR_PG_ARRAY : t->kind == TR_CH_MAP ? TR_PG_HSTORE : TR_PG_RECORD, text, scratch);
    if (t->kind == TR_CH_ARRAY)
        return array_parts(t, from, &it, part, ctx, ret_n, err);
    return other_parts(t, &it, part, ctx, ret_n, err);
}
