#include "decfloat.h"

#include "check.h"
#include "digits.h"

typedef unsigned __int128 u128;

/* Where the two formats differ. */
struct format {
    uint8_t mantissa_bits; /* without the implied one */
    int16_t least_exponent; /* of two, biased to 0 */
    int16_t infinite;      /* the biased exponent of infinity */
    int8_t tie_least, tie_most; /* powers of ten at which a product can be an exact tie */
};

static const struct format f64 = {52, -1023, 0x7ff, -4, 23};
static const struct format f32 = {23, -127, 0xff, -17, 10};

/* 5^q as 128 bits with the highest one set: truncated for q >= 0, rounded up for q < 0. */
enum { Q_LEAST = -60, Q_MOST = 60 };
static const struct { uint64_t hi, lo; } power5[Q_MOST - Q_LEAST + 1] = {
    {UINT64_C(0xcdb02555653131b6), UINT64_C(0x3792f412cb06794d)},
    {UINT64_C(0x808e17555f3ebf11), UINT64_C(0xe2bbd88bbee40bd0)},
    {UINT64_C(0xa0b19d2ab70e6ed6), UINT64_C(0x5b6aceaeae9d0ec4)},
    {UINT64_C(0xc8de047564d20a8b), UINT64_C(0xf245825a5a445275)},
    {UINT64_C(0xfb158592be068d2e), UINT64_C(0xeed6e2f0f0d56712)},
    {UINT64_C(0x9ced737bb6c4183d), UINT64_C(0x55464dd69685606b)},
    {UINT64_C(0xc428d05aa4751e4c), UINT64_C(0xaa97e14c3c26b886)},
    {UINT64_C(0xf53304714d9265df), UINT64_C(0xd53dd99f4b3066a8)},
    {UINT64_C(0x993fe2c6d07b7fab), UINT64_C(0xe546a8038efe4029)},
    {UINT64_C(0xbf8fdb78849a5f96), UINT64_C(0xde98520472bdd033)},
    {UINT64_C(0xef73d256a5c0f77c), UINT64_C(0x963e66858f6d4440)},
    {UINT64_C(0x95a8637627989aad), UINT64_C(0xdde7001379a44aa8)},
    {UINT64_C(0xbb127c53b17ec159), UINT64_C(0x5560c018580d5d52)},
    {UINT64_C(0xe9d71b689dde71af), UINT64_C(0xaab8f01e6e10b4a6)},
    {UINT64_C(0x9226712162ab070d), UINT64_C(0xcab3961304ca70e8)},
    {UINT64_C(0xb6b00d69bb55c8d1), UINT64_C(0x3d607b97c5fd0d22)},
    {UINT64_C(0xe45c10c42a2b3b05), UINT64_C(0x8cb89a7db77c506a)},
    {UINT64_C(0x8eb98a7a9a5b04e3), UINT64_C(0x77f3608e92adb242)},
    {UINT64_C(0xb267ed1940f1c61c), UINT64_C(0x55f038b237591ed3)},
    {UINT64_C(0xdf01e85f912e37a3), UINT64_C(0x6b6c46dec52f6688)},
    {UINT64_C(0x8b61313bbabce2c6), UINT64_C(0x2323ac4b3b3da015)},
    {UINT64_C(0xae397d8aa96c1b77), UINT64_C(0xabec975e0a0d081a)},
    {UINT64_C(0xd9c7dced53c72255), UINT64_C(0x96e7bd358c904a21)},
    {UINT64_C(0x881cea14545c7575), UINT64_C(0x7e50d64177da2e54)},
    {UINT64_C(0xaa242499697392d2), UINT64_C(0xdde50bd1d5d0b9e9)},
    {UINT64_C(0xd4ad2dbfc3d07787), UINT64_C(0x955e4ec64b44e864)},
    {UINT64_C(0x84ec3c97da624ab4), UINT64_C(0xbd5af13bef0b113e)},
    {UINT64_C(0xa6274bbdd0fadd61), UINT64_C(0xecb1ad8aeacdd58e)},
    {UINT64_C(0xcfb11ead453994ba), UINT64_C(0x67de18eda5814af2)},
    {UINT64_C(0x81ceb32c4b43fcf4), UINT64_C(0x80eacf948770ced7)},
    {UINT64_C(0xa2425ff75e14fc31), UINT64_C(0xa1258379a94d028d)},
    {UINT64_C(0xcad2f7f5359a3b3e), UINT64_C(0x096ee45813a04330)},
    {UINT64_C(0xfd87b5f28300ca0d), UINT64_C(0x8bca9d6e188853fc)},
    {UINT64_C(0x9e74d1b791e07e48), UINT64_C(0x775ea264cf55347e)},
    {UINT64_C(0xc612062576589dda), UINT64_C(0x95364afe032a819e)},
    {UINT64_C(0xf79687aed3eec551), UINT64_C(0x3a83ddbd83f52205)},
    {UINT64_C(0x9abe14cd44753b52), UINT64_C(0xc4926a9672793543)},
    {UINT64_C(0xc16d9a0095928a27), UINT64_C(0x75b7053c0f178294)},
    {UINT64_C(0xf1c90080baf72cb1), UINT64_C(0x5324c68b12dd6339)},
    {UINT64_C(0x971da05074da7bee), UINT64_C(0xd3f6fc16ebca5e04)},
    {UINT64_C(0xbce5086492111aea), UINT64_C(0x88f4bb1ca6bcf585)},
    {UINT64_C(0xec1e4a7db69561a5), UINT64_C(0x2b31e9e3d06c32e6)},
    {UINT64_C(0x9392ee8e921d5d07), UINT64_C(0x3aff322e62439fd0)},
    {UINT64_C(0xb877aa3236a4b449), UINT64_C(0x09befeb9fad487c3)},
    {UINT64_C(0xe69594bec44de15b), UINT64_C(0x4c2ebe687989a9b4)},
    {UINT64_C(0x901d7cf73ab0acd9), UINT64_C(0x0f9d37014bf60a11)},
    {UINT64_C(0xb424dc35095cd80f), UINT64_C(0x538484c19ef38c95)},
    {UINT64_C(0xe12e13424bb40e13), UINT64_C(0x2865a5f206b06fba)},
    {UINT64_C(0x8cbccc096f5088cb), UINT64_C(0xf93f87b7442e45d4)},
    {UINT64_C(0xafebff0bcb24aafe), UINT64_C(0xf78f69a51539d749)},
    {UINT64_C(0xdbe6fecebdedd5be), UINT64_C(0xb573440e5a884d1c)},
    {UINT64_C(0x89705f4136b4a597), UINT64_C(0x31680a88f8953031)},
    {UINT64_C(0xabcc77118461cefc), UINT64_C(0xfdc20d2b36ba7c3e)},
    {UINT64_C(0xd6bf94d5e57a42bc), UINT64_C(0x3d32907604691b4d)},
    {UINT64_C(0x8637bd05af6c69b5), UINT64_C(0xa63f9a49c2c1b110)},
    {UINT64_C(0xa7c5ac471b478423), UINT64_C(0x0fcf80dc33721d54)},
    {UINT64_C(0xd1b71758e219652b), UINT64_C(0xd3c36113404ea4a9)},
    {UINT64_C(0x83126e978d4fdf3b), UINT64_C(0x645a1cac083126ea)},
    {UINT64_C(0xa3d70a3d70a3d70a), UINT64_C(0x3d70a3d70a3d70a4)},
    {UINT64_C(0xcccccccccccccccc), UINT64_C(0xcccccccccccccccd)},
    {UINT64_C(0x8000000000000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xa000000000000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xc800000000000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xfa00000000000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0x9c40000000000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xc350000000000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xf424000000000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0x9896800000000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xbebc200000000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xee6b280000000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0x9502f90000000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xba43b74000000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xe8d4a51000000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0x9184e72a00000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xb5e620f480000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xe35fa931a0000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0x8e1bc9bf04000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xb1a2bc2ec5000000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xde0b6b3a76400000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0x8ac7230489e80000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xad78ebc5ac620000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xd8d726b7177a8000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0x878678326eac9000), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xa968163f0a57b400), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xd3c21bcecceda100), UINT64_C(0x0000000000000000)},
    {UINT64_C(0x84595161401484a0), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xa56fa5b99019a5c8), UINT64_C(0x0000000000000000)},
    {UINT64_C(0xcecb8f27f4200f3a), UINT64_C(0x0000000000000000)},
    {UINT64_C(0x813f3978f8940984), UINT64_C(0x4000000000000000)},
    {UINT64_C(0xa18f07d736b90be5), UINT64_C(0x5000000000000000)},
    {UINT64_C(0xc9f2c9cd04674ede), UINT64_C(0xa400000000000000)},
    {UINT64_C(0xfc6f7c4045812296), UINT64_C(0x4d00000000000000)},
    {UINT64_C(0x9dc5ada82b70b59d), UINT64_C(0xf020000000000000)},
    {UINT64_C(0xc5371912364ce305), UINT64_C(0x6c28000000000000)},
    {UINT64_C(0xf684df56c3e01bc6), UINT64_C(0xc732000000000000)},
    {UINT64_C(0x9a130b963a6c115c), UINT64_C(0x3c7f400000000000)},
    {UINT64_C(0xc097ce7bc90715b3), UINT64_C(0x4b9f100000000000)},
    {UINT64_C(0xf0bdc21abb48db20), UINT64_C(0x1e86d40000000000)},
    {UINT64_C(0x96769950b50d88f4), UINT64_C(0x1314448000000000)},
    {UINT64_C(0xbc143fa4e250eb31), UINT64_C(0x17d955a000000000)},
    {UINT64_C(0xeb194f8e1ae525fd), UINT64_C(0x5dcfab0800000000)},
    {UINT64_C(0x92efd1b8d0cf37be), UINT64_C(0x5aa1cae500000000)},
    {UINT64_C(0xb7abc627050305ad), UINT64_C(0xf14a3d9e40000000)},
    {UINT64_C(0xe596b7b0c643c719), UINT64_C(0x6d9ccd05d0000000)},
    {UINT64_C(0x8f7e32ce7bea5c6f), UINT64_C(0xe4820023a2000000)},
    {UINT64_C(0xb35dbf821ae4f38b), UINT64_C(0xdda2802c8a800000)},
    {UINT64_C(0xe0352f62a19e306e), UINT64_C(0xd50b2037ad200000)},
    {UINT64_C(0x8c213d9da502de45), UINT64_C(0x4526f422cc340000)},
    {UINT64_C(0xaf298d050e4395d6), UINT64_C(0x9670b12b7f410000)},
    {UINT64_C(0xdaf3f04651d47b4c), UINT64_C(0x3c0cdd765f114000)},
    {UINT64_C(0x88d8762bf324cd0f), UINT64_C(0xa5880a69fb6ac800)},
    {UINT64_C(0xab0e93b6efee0053), UINT64_C(0x8eea0d047a457a00)},
    {UINT64_C(0xd5d238a4abe98068), UINT64_C(0x72a4904598d6d880)},
    {UINT64_C(0x85a36366eb71f041), UINT64_C(0x47a6da2b7f864750)},
    {UINT64_C(0xa70c3c40a64e6c51), UINT64_C(0x999090b65f67d924)},
    {UINT64_C(0xd0cf4b50cfe20765), UINT64_C(0xfff4b4e3f741cf6d)},
    {UINT64_C(0x82818f1281ed449f), UINT64_C(0xbff8f10e7a8921a4)},
    {UINT64_C(0xa321f2d7226895c7), UINT64_C(0xaff72d52192b6a0d)},
    {UINT64_C(0xcbea6f8ceb02bb39), UINT64_C(0x9bf4f8a69f764490)},
    {UINT64_C(0xfee50b7025c36a08), UINT64_C(0x02f236d04753d5b4)},
    {UINT64_C(0x9f4f2726179a2245), UINT64_C(0x01d762422c946590)},
};

/* ---- text ---- */

static bool special(struct tr_slice s, struct tr_decfloat *d)
{
    d->minus = s.n && s.p[0] == '-';
    d->kind = tr_slice_eq_str(s, "NaN") ? 'N' : 'i';
    return d->kind == 'N' || tr_slice_eq_str(tr_slice_sub(s, d->minus, s.n), "Infinity");
}

/* Digits from p on; the first 19 significant ones go into w. *skipped counts those beyond. */
static const uint8_t *digits(const uint8_t *p, const uint8_t *end, uint64_t *w, uint32_t *n, int64_t *skipped)
{
    uint32_t chunk;
    while (!*n && p < end && *p == '0')
        p++;
    for (; *n <= 11 && end - p >= 8 && tr_digits8(p, &chunk); p += 8, *n += 8)
        *w = *w * 100000000 + chunk;
    for (; *n < 19 && p < end && (uint8_t)(*p - '0') < 10; p++, ++*n)
        *w = *w * 10 + (uint64_t)(*p - '0');
    for (; p < end && (uint8_t)(*p - '0') < 10; p++, ++*n)
        ++*skipped;
    return p;
}

static const uint8_t *exponent(const uint8_t *p, const uint8_t *end, int64_t *ret)
{
    bool minus = p < end && *p == '-';
    int64_t e = 0;
    p += p < end && (*p == '-' || *p == '+');
    if (p == end)
        return NULL;
    for (; p < end && (uint8_t)(*p - '0') < 10; p++)
        if (e < 100000)
            e = e * 10 + (*p - '0');
    *ret = minus ? -e : e;
    return p;
}

bool tr_decfloat_scan(struct tr_slice text, struct tr_decfloat *d)
{
    const uint8_t *p = text.p, *end = text.p + text.n, *from, *point;
    uint64_t w = 0;
    uint32_t n = 0;
    int64_t skipped = 0, e = 0, behind = 0;
    if (!text.n)
        return false;
    d->text = text;
    d->kind = 'n';
    d->minus = *p == '-';
    from = p += d->minus;
    p = digits(p, end, &w, &n, &skipped);
    if (p == from)
        return special(text, d);
    if (p < end && *p == '.') {
        point = ++p;
        p = digits(p, end, &w, &n, &skipped);
        if (p == point)
            return false;
        behind = p - point;
        for (const uint8_t *z = p; n > 15 && z > point && z[-1] == '0'; z--)
            n--;
    }
    if (p < end && (*p == 'e' || *p == 'E') && !(p = exponent(p + 1, end, &e)))
        return false;
    if (p != end || text.n > INT32_MAX / 2)
        return false;
    d->w = w;
    d->digits = n;
    d->exp10 = (int32_t)(e - behind + skipped);
    return true;
}

/* ---- the product ---- */

static uint64_t product(const struct format *f, uint64_t w, int32_t q)
{
    int lz = __builtin_clzll(w);
    uint64_t mask = UINT64_MAX >> (f->mantissa_bits + 3);
    w <<= lz;
    u128 first = (u128)w * power5[q - Q_LEAST].hi;
    uint64_t hi = (uint64_t)(first >> 64), lo = (uint64_t)first;
    if ((hi & mask) == mask) {
        uint64_t more = (uint64_t)((u128)w * power5[q - Q_LEAST].lo >> 64);
        lo += more;
        hi += more > lo;
    }
    int up = (int)(hi >> 63), shift = up + 64 - f->mantissa_bits - 3;
    uint64_t m = hi >> shift;
    int32_t e = ((217706 * q) >> 16) + 63 + up - lz - f->least_exponent; /* 217706 / 2^16: log2(10) */
    if (e <= 0) {
        if (1 - e >= 64)
            return 0;
        m >>= 1 - e;
        m = (m + (m & 1)) >> 1;
        return m; /* a carry into the first normal number is its exponent */
    }
    if (lo <= 1 && q >= f->tie_least && q <= f->tie_most && (m & 3) == 1 && m << shift == hi)
        m &= ~UINT64_C(1);
    m = (m + (m & 1)) >> 1;
    if (m >> (f->mantissa_bits + 1)) {
        m >>= 1;
        e++;
    }
    if (e >= f->infinite)
        return (uint64_t)f->infinite << f->mantissa_bits;
    return (uint64_t)e << f->mantissa_bits | (m & ((UINT64_C(1) << f->mantissa_bits) - 1));
}

/* ---- long arithmetic ---- */

enum { LIMBS = 192, DIGITS_MOST = 800 }; /* 800 digits decide every tie (767 do); 800 digits with an exponent of -1150 need 5,300 bits at most */

struct big {
    uint32_t limb[LIMBS];
    uint32_t n;
    bool rest; /* something was cut off below */
};

static void multiply_add(struct big *b, uint32_t by, uint32_t add)
{
    uint64_t carry = add;
    for (uint32_t i = 0; i < b->n; i++) {
        carry += (uint64_t)b->limb[i] * by;
        b->limb[i] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry) {
        TR_ASSERT(b->n < LIMBS);
        b->limb[b->n++] = (uint32_t)carry;
    }
}

static void divide(struct big *b, uint32_t by)
{
    uint64_t left = 0;
    for (uint32_t i = b->n; i-- > 0;) {
        left = left << 32 | b->limb[i];
        b->limb[i] = (uint32_t)(left / by);
        left %= by;
    }
    b->rest |= left != 0;
    while (b->n && !b->limb[b->n - 1])
        b->n--;
}

static uint32_t bits_of(const struct big *b)
{
    return b->n ? b->n * 32 - (uint32_t)__builtin_clz(b->limb[b->n - 1]) : 0;
}

static void shift_limbs(struct big *b, uint32_t by)
{
    TR_ASSERT(b->n + by <= LIMBS);
    memmove(b->limb + by, b->limb, b->n * sizeof b->limb[0]);
    memset(b->limb, 0, by * sizeof b->limb[0]);
    b->n += by;
}

/* The highest 64 bits. */
static uint64_t top(struct big *b, uint32_t bits)
{
    uint64_t m = 0;
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t at = bits - 1 - i;
        m = m << 1 | (i < bits ? b->limb[at / 32] >> (at % 32) & 1 : 0);
    }
    for (uint32_t i = 0; bits > 64 && i < bits - 64; i++)
        b->rest |= b->limb[i / 32] >> (i % 32) & 1;
    return m;
}

/* m * 2^e, its highest bit set, and something below if rest. */
static uint64_t rounded(const struct format *f, uint64_t m, int32_t e, bool rest)
{
    int32_t biased = e + 63 - f->least_exponent;
    int32_t drop = 63 - f->mantissa_bits + (biased <= 0 ? 1 - biased : 0);
    if (drop > 64)
        return 0;
    uint64_t kept = drop == 64 ? 0 : m >> drop, half = UINT64_C(1) << (drop - 1), below = m & (half - 1);
    kept += (m & half) && (below || rest || (kept & 1));
    if (biased <= 0)
        return kept;
    if (kept >> (f->mantissa_bits + 1)) {
        kept >>= 1;
        biased++;
    }
    if (biased >= f->infinite)
        return (uint64_t)f->infinite << f->mantissa_bits;
    return (uint64_t)biased << f->mantissa_bits | (kept & ((UINT64_C(1) << f->mantissa_bits) - 1));
}

static uint64_t exact(const struct format *f, const struct tr_decfloat *d)
{
    struct big b = {.n = 0};
    uint32_t n = 0;
    int64_t e = d->exp10; /* of the last of all digits, once those beyond the 19th are counted */
    for (size_t i = d->minus; i < d->text.n && (d->text.p[i] | 0x20) != 'e'; i++) {
        uint8_t c = d->text.p[i];
        if (c == '.')
            continue;
        e -= n >= 19;
        if (n < DIGITS_MOST)
            multiply_add(&b, 10, (uint32_t)(c - '0'));
        else
            b.rest |= c != '0';
        e += n >= DIGITS_MOST;
        n += n || c != '0';
    }
    int64_t size = e + (n < DIGITS_MOST ? n : DIGITS_MOST);
    if (size > 310 || size < -345)
        return size > 0 ? (uint64_t)f->infinite << f->mantissa_bits : 0;
    int32_t two = 0;
    for (; e > 0; e -= e > 9 ? 9 : e)
        for (int64_t k = 0; k < (e > 9 ? 9 : e); k++)
            multiply_add(&b, 10, 0);
    if (e < 0) {
        uint32_t want = (uint32_t)(-e * 10 / 3 + 66), have = bits_of(&b), limbs = want > have ? (want - have + 31) / 32 : 0;
        shift_limbs(&b, limbs);
        two = -(int32_t)(limbs * 32);
        for (; e <= -9; e += 9)
            divide(&b, 1000000000);
        for (; e < 0; e++)
            divide(&b, 10);
    }
    uint32_t bits = bits_of(&b);
    uint64_t m = top(&b, bits);
    return rounded(f, m, two + (int32_t)bits - 64, b.rest);
}

static uint64_t bits(const struct format *f, const struct tr_decfloat *d, uint64_t sign)
{
    uint64_t v;
    if (d->kind == 'N')
        return (uint64_t)f->infinite << f->mantissa_bits | UINT64_C(1) << (f->mantissa_bits - 1);
    if (d->kind == 'i')
        v = (uint64_t)f->infinite << f->mantissa_bits;
    else if (!d->w)
        v = 0;
    else if (d->digits <= 19 && d->exp10 >= Q_LEAST && d->exp10 <= Q_MOST)
        v = product(f, d->w, d->exp10);
    else
        v = exact(f, d);
    return d->minus ? v | sign : v;
}

uint64_t tr_decfloat_f64(const struct tr_decfloat *d)
{
    return bits(&f64, d, UINT64_C(1) << 63);
}

uint32_t tr_decfloat_f32(const struct tr_decfloat *d)
{
    return (uint32_t)bits(&f32, d, UINT64_C(1) << 31);
}
