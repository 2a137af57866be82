/* ClickHouse: types as trees, texts to bytes or refusals, rows and blocks. What a server makes of the bytes is tests/e2e/clickhouse_golden.sh's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tailrace/schema.h>

#include "alloc.h"
#include "chnative.h"
#include "decfloat.h"
#include "prng.h"
#include "rowbinary.h"
#include "text.h"

static struct tr_arena arena;

static const struct tr_ch_type *type_of(const char *text)
{
    const struct tr_ch_type *t = NULL;
    struct tr_err err;
    if (tr_ch_type_parse(tr_slice_str(text), &arena, &t, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return t;
}

static const char *printed(const char *text, bool plain)
{
    static struct tr_buf b;
    tr_buf_clear(&b);
    assert_int_equal(tr_ch_type_print(type_of(text), plain, &b), TR_OK);
    const char *s = tr_buf_cstr(&b);
    static char out[1024];
    snprintf(out, sizeof out, "%s", s);
    tr_buf_done(&b);
    return out;
}

static void types_are_printed_as_they_came(void **state)
{
    (void)state;
    static const char *const same[] = {
        "Bool", "Int256", "UInt128", "Float64", "Decimal(9, 0)", "Decimal(76, 76)", "String", "FixedString(16)", "Date", "Date32", "DateTime", "DateTime('Europe/Berlin')",
        "DateTime64(6)", "DateTime64(0, 'UTC')", "Time", "Time64(3)", "UUID", "IPv4", "IPv6", "Enum8('a' = 1, 'b' = -128)", "Enum16('it\\'s' = 1, 'tab\\t, )' = 32767, '' = 0)",
        "Nullable(String)", "LowCardinality(Nullable(String))", "SimpleAggregateFunction(sum, UInt64)", "SimpleAggregateFunction(groupArrayArray(10), Array(Int8))",
        "Array(Array(Nullable(Decimal(38, 4))))", "Map(LowCardinality(String), Array(Int32))", "Tuple(Int8, String)", "Tuple(a Int8, `b c` Tuple(String))",
        "Nested(k String, v Nullable(DateTime64(3, 'UTC')))",
    };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        assert_string_equal(printed(same[i], false), same[i]);
    assert_string_equal(printed(" Decimal32( 2 ) ", false), "Decimal(9, 2)");
    assert_string_equal(printed("Decimal256(10)", false), "Decimal(76, 10)");
    assert_string_equal(printed("Tuple( a Int8 ,b  Map(String,Int8) )", false), "Tuple(a Int8, b Map(String, Int8))");
    assert_string_equal(printed("Array(LowCardinality(Nullable(String)))", true), "Array(Nullable(String))");
    assert_string_equal(printed("SimpleAggregateFunction(max, LowCardinality(String))", true), "String");
    assert_string_equal(printed("Map(LowCardinality(String), Nested(a LowCardinality(String)))", true), "Map(String, Nested(a String))");
}

static void trees_say_what_bytes_are_made_of(void **state)
{
    (void)state;
    const struct tr_ch_type *t = type_of("LowCardinality(Nullable(FixedString(3)))");
    assert_true(t->nullable);
    assert_int_equal(t->value->kind, TR_CH_FIXED_STRING);
    assert_int_equal(t->width, 3);
    t = type_of("Nested(a Int8, b Array(Int8))");
    assert_int_equal(t->kind, TR_CH_NESTED);
    assert_int_equal(t->value->kind, TR_CH_ARRAY);
    assert_int_equal(t->value->of[0]->kind, TR_CH_TUPLE);
    assert_int_equal(t->value->of[0]->of[1]->value->kind, TR_CH_ARRAY);
    assert_int_equal(t->depth, 3);
    assert_int_equal(t->value->depth, 3);
    int16_t v = 0;
    t = type_of("Enum16('it\\'s' = 300, 'tab\\t\\x41' = -2, 'z' = 0)");
    assert_true(tr_ch_type_member(t, tr_slice_str("it's"), &v));
    assert_int_equal(v, 300);
    assert_true(tr_ch_type_member(t, tr_slice_str("tab\tA"), &v));
    assert_int_equal(v, -2);
    assert_false(tr_ch_type_member(t, tr_slice_str("its"), &v));
}

static void types_are_refused_by_name(void **state)
{
    (void)state;
    static const struct { const char *text, *says; } bad[] = {
        {"AggregateFunction(sum, UInt64)", "AggregateFunction: tailrace cannot"}, {"Array(Variant(Int8, String))", "Variant: tailrace"}, {"Dynamic", "Dynamic"}, {"JSON", "JSON"},
        {"Tuple(a Int8, b Point)", "Point"}, {"int8", "int8"}, {"", "a name is missing"}, {"Int8(3)", "without parameters"}, {"Int8 x", "something follows"},
        {"Decimal(77, 2)", "1 to 76"}, {"Decimal(5, 6)", "1 to 76"}, {"Decimal", "parameters are missing"}, {"DateTime64", "parameters are missing"}, {"DateTime64(10)", "0 to 9"},
        {"DateTime64(3, UTC)", "zone"}, {"FixedString(0)", "FixedString"}, {"FixedString(99999999999999999999)", "FixedString"}, {"Enum8('a' = 128)", "out of range"}, {"Enum8('a' = 1, 'a' = 2)", "twice"},
        {"Enum8()", "member"}, {"Enum8('a)", "member"}, {"Nullable(Array(Int8))", "only a scalar"}, {"Nullable(Nullable(Int8))", "only a scalar"}, {"Nullable(LowCardinality(String))", "only a scalar"},
        {"LowCardinality(Array(Int8))", "only a scalar"}, {"LowCardinality(LowCardinality(String))", "only a scalar"}, {"Map(Nullable(String), Int8)", "key of a Map"}, {"Map(String)", "comma"}, {"Tuple()", "element is missing"},
        {"Tuple(a Int8, String)", "no name"}, {"Nested(String)", "no name"}, {"Array(Int8", "not closed"}, {"SimpleAggregateFunction(sum)", "missing"},
        {"Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array(Array("
         "Array(Int8)))))))))))))))))))))))))))))))))", "too deep"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct tr_ch_type *t;
        struct tr_err err = {0};
        assert_int_equal(tr_ch_type_parse(tr_slice_str(bad[i].text), &arena, &t, &err), TR_REJECT);
        if (!strstr(err.msg, bad[i].says))
            fail_msg("%s: says '%s', not '%s'", bad[i].text, err.msg, bad[i].says);
    }
    struct tr_arena little;
    const struct tr_ch_type *t;
    tr_arena_init(&little, 64, 256);
    assert_int_equal(tr_ch_type_parse(tr_slice_str("Tuple(Int8, Int8, Int8, Int8)"), &little, &t, NULL), TR_NOMEM);
    tr_arena_done(&little);
}

/* ---- values ---- */

#define ANY TR_TYPE_OPAQUE
#define HEX_0 "0000000000000000"
#define HEX_F "ffffffffffffffff"

/* text NULL is NULL; hex "!…" is a refusal that says …. */
static const struct value {
    const char *type;
    uint8_t from;
    const char *text, *hex;
} values[] = {
    {"Bool", TR_TYPE_BOOL, "t", "01"},
    {"Bool", TR_TYPE_BOOL, "f", "00"},
    {"Bool", TR_TYPE_BOOL, "2", "!neither t nor f"},
    {"UInt8", TR_TYPE_BOOL, "t", "01"},
    {"Int8", ANY, "-128", "80"},
    {"Int8", ANY, "127", "7f"},
    {"Int8", ANY, "128", "!out of range"},
    {"Int8", ANY, "-129", "!out of range"},
    {"Int8", ANY, "", "!no integer"},
    {"Int8", ANY, "-", "!no integer"},
    {"Int8", ANY, "+1", "!no integer"},
    {"Int8", ANY, "1.0", "!no integer"},
    {"Int8", ANY, " 1", "!no integer"},
    {"Int8", ANY, NULL, "!NULL"},
    {"Int16", ANY, "-32768", "0080"},
    {"Int16", ANY, "32768", "!out of range"},
    {"Int32", ANY, "2147483647", "ffffff7f"},
    {"Int32", ANY, "2147483648", "!out of range"},
    {"Int32", ANY, "-2147483649", "!out of range"},
    {"Int64", ANY, "9223372036854775807", "ffffffffffffff7f"},
    {"Int64", ANY, "9223372036854775808", "!out of range"},
    {"Int64", ANY, "-9223372036854775808", "0000000000000080"},
    {"Int64", ANY, "-9223372036854775809", "!out of range"},
    {"Int64", ANY, "00000000000000000000000000000012", "0c00000000000000"},
    {"UInt8", ANY, "255", "ff"},
    {"UInt8", ANY, "256", "!out of range"},
    {"UInt8", ANY, "-1", "!out of range"},
    {"UInt64", ANY, "18446744073709551615", HEX_F},
    {"UInt64", ANY, "18446744073709551616", "!out of range"},
    {"UInt64", ANY, "99999999999999999999", "!out of range"},
    {"Int128", ANY, "170141183460469231731687303715884105727", HEX_F "ffffffffffffff7f"},
    {"Int128", ANY, "170141183460469231731687303715884105728", "!out of range"},
    {"Int128", ANY, "-170141183460469231731687303715884105728", HEX_0 "0000000000000080"},
    {"Int128", ANY, "-170141183460469231731687303715884105729", "!out of range"},
    {"Int128", ANY, "-1", HEX_F HEX_F},
    {"UInt128", ANY, "340282366920938463463374607431768211455", HEX_F HEX_F},
    {"UInt128", ANY, "340282366920938463463374607431768211456", "!out of range"},
    {"UInt128", ANY, "-1", "!out of range"},
    {"Int256", ANY, "57896044618658097711785492504343953926634992332820282019728792003956564819967", HEX_F HEX_F HEX_F "ffffffffffffff7f"},
    {"Int256", ANY, "57896044618658097711785492504343953926634992332820282019728792003956564819968", "!out of range"},
    {"Int256", ANY, "-57896044618658097711785492504343953926634992332820282019728792003956564819968", HEX_0 HEX_0 HEX_0 "0000000000000080"},
    {"UInt256", ANY, "115792089237316195423570985008687907853269984665640564039457584007913129639935", HEX_F HEX_F HEX_F HEX_F},
    {"UInt256", ANY, "115792089237316195423570985008687907853269984665640564039457584007913129639936", "!out of range"},
    {"UInt256", ANY, "1157920892373161954235709850086879078532699846656405640394575840079131296399360", "!out of range"},
    {"Float64", TR_TYPE_FLOAT64, "0.1", "9a9999999999b93f"},
    {"Float64", TR_TYPE_FLOAT64, "-0", "0000000000000080"},
    {"Float64", TR_TYPE_FLOAT64, "NaN", "000000000000f87f"},
    {"Float64", TR_TYPE_FLOAT64, "Infinity", "000000000000f07f"},
    {"Float64", TR_TYPE_FLOAT64, "-Infinity", "000000000000f0ff"},
    {"Float64", TR_TYPE_FLOAT64, "1.7976931348623157e+308", "ffffffffffffef7f"},
    {"Float64", TR_TYPE_FLOAT64, "5e-324", "0100000000000000"},
    {"Float64", TR_TYPE_FLOAT64, "1e309", "!out of range"},
    {"Float64", TR_TYPE_FLOAT64, "1e-330", "!out of range"},
    {"Float64", TR_TYPE_FLOAT64, "1e", "!no number"},
    {"Float64", TR_TYPE_FLOAT64, "", "!no number"},
    {"Float64", TR_TYPE_FLOAT64, "0x1", "!no number"},
    {"Float64", TR_TYPE_DECIMAL, "0.100000000000000", "9a9999999999b93f"},
    {"Float64", TR_TYPE_DECIMAL, "0.123456789012345", "2ef64637dd9abf3f"},
    {"Float64", TR_TYPE_DECIMAL, "0.1234567890123456", "!more digits"},
    {"Float64", TR_TYPE_INT64, "9007199254740992", "0000000000004043"},
    {"Float64", TR_TYPE_INT64, "9007199254740993", "!more digits"},
    {"Float64", TR_TYPE_OPAQUE, "0.30000000000000004", "343333333333d33f"},
    {"Float64", TR_TYPE_OPAQUE, "0.300000000000000041", "!more digits"},
    {"Float32", TR_TYPE_FLOAT32, "0.1", "cdcccc3d"},
    {"Float32", TR_TYPE_OPAQUE, "123456.79", "6520f147"},
    {"Float32", TR_TYPE_TEXT, "123456.79", "!more digits"},
    {"Float32", TR_TYPE_FLOAT32, "3.4028235e+38", "ffff7f7f"},
    {"Float32", TR_TYPE_FLOAT64, "0.1", "!more digits"},
    {"Float32", TR_TYPE_FLOAT64, "0.5", "0000003f"},
    {"Float32", TR_TYPE_FLOAT64, "1e39", "!out of range"},
    {"Decimal(9, 2)", ANY, "12.5", "e2040000"},
    {"Decimal(9, 2)", ANY, "-0.01", "ffffffff"},
    {"Decimal(9, 2)", ANY, "12.500", "e2040000"},
    {"Decimal(9, 2)", ANY, "12.505", "!more digits behind"},
    {"Decimal(9, 2)", ANY, "9999999.99", "ffc99a3b"},
    {"Decimal(9, 2)", ANY, "10000000", "!out of range"},
    {"Decimal(9, 2)", ANY, "0000000000000000001", "64000000"},
    {"Decimal(9, 9)", ANY, "0.999999999", "ffc99a3b"},
    {"Decimal(9, 9)", ANY, "1", "!out of range"},
    {"Decimal(9, 0)", ANY, "NaN", "!NaN or infinite"},
    {"Decimal(9, 0)", ANY, "-Infinity", "!NaN or infinite"},
    {"Decimal(9, 0)", ANY, "1e3", "!no decimal"},
    {"Decimal(9, 0)", ANY, ".", "!no decimal"},
    {"Decimal(9, 0)", ANY, "1.", "!no decimal"},
    {"Decimal(9, 0)", ANY, "", "!no decimal"},
    {"Decimal(18, 4)", ANY, "-1", "f0d8ffffffffffff"},
    {"Decimal(38, 10)", ANY, "1", "00e40b5402000000" HEX_0},
    {"Decimal(38, 0)", ANY, "99999999999999999999999999999999999999", "ffffffff3f228a097ac4865aa84c3b4b"},
    {"Decimal(76, 0)", ANY, "-1", HEX_F HEX_F HEX_F HEX_F},
    {"Decimal(76, 75)", ANY, "9.999999999999999999999999999999999999999999999999999999999999999999999999999",
     "ffffffffffffffffff0f9571f1a57577792965e8abb46407b5159911a7cc1b16"},
    {"Decimal(76, 75)", ANY, "10", "!out of range"},
    {"String", TR_TYPE_TEXT, "\\x41", "045c783431"},
    {"String", TR_TYPE_BYTES, "\\x41fF", "0241ff"},
    {"String", TR_TYPE_BYTES, "\\x", "00"},
    {"String", TR_TYPE_BYTES, "\\x4", "!bytea"},
    {"String", TR_TYPE_BYTES, "\\x4g", "!bytea"},
    {"String", TR_TYPE_BYTES, "41", "!bytea"},
    {"String", ANY, "", "00"},
    {"FixedString(3)", TR_TYPE_TEXT, "ab", "616200"},
    {"FixedString(3)", TR_TYPE_TEXT, "abcd", "!longer"},
    {"FixedString(2)", TR_TYPE_BYTES, "\\x4100", "4100"},
    {"FixedString(2)", TR_TYPE_BYTES, "\\x41", "!length"},
    {"Date", ANY, "1970-01-01", "0000"},
    {"Date", ANY, "2149-06-06", "ffff"},
    {"Date", ANY, "2149-06-07", "!out of range"},
    {"Date", ANY, "1969-12-31", "!out of range"},
    {"Date", ANY, "2024-02-29", "464d"},
    {"Date", ANY, "2023-02-29", "!no date"},
    {"Date", ANY, "2023-13-01", "!no date"},
    {"Date", ANY, "2023-00-01", "!no date"},
    {"Date", ANY, "2023-01-32", "!no date"},
    {"Date", ANY, "infinity", "!infinite"},
    {"Date", ANY, "-infinity", "!infinite"},
    {"Date", ANY, "10000-01-01", "!out of range"},
    {"Date", ANY, "0044-03-15 BC", "!before Christ"},
    {"Date", ANY, "2024-02-29 00:00:00", "!no date"},
    {"Date32", ANY, "1900-01-01", "219cffff"},
    {"Date32", ANY, "1899-12-31", "!out of range"},
    {"Date32", ANY, "2299-12-31", "d1d60100"},
    {"Date32", ANY, "2300-01-01", "!out of range"},
    {"DateTime", ANY, "2106-02-07 06:28:15+00", "ffffffff"},
    {"DateTime", ANY, "2106-02-07 06:28:16", "!out of range"},
    {"DateTime", ANY, "1970-01-01 00:00:00.000", "00000000"},
    {"DateTime", ANY, "1970-01-01 00:00:00.5", "!more digits of a second"},
    {"DateTime", ANY, "1970-01-01 05:30:01+05:30", "01000000"},
    {"DateTime", ANY, "1969-12-31 19:00:02-05", "02000000"},
    {"DateTime", ANY, "1970-01-01", "!no timestamp"},
    {"DateTime", ANY, "1970-01-01T00:00:00", "!no timestamp"},
    {"DateTime", ANY, "1970-01-01 25:00:00", "!no timestamp"},
    {"DateTime", ANY, "1970-01-01 00:00:00+0", "!no timestamp"},
    {"DateTime", ANY, "1970-01-01 00:00:00 BC", "!before Christ"},
    {"DateTime", ANY, "0044-03-15 12:00:00+00 BC", "!before Christ"},
    {"DateTime", ANY, "infinity", "!infinite"},
    {"DateTime64(6)", ANY, "1970-01-01 00:00:01.000002+00", "42420f0000000000"},
    {"DateTime64(6)", ANY, "1969-12-31 23:59:59.999999", HEX_F},
    {"DateTime64(3)", ANY, "1970-01-01 00:00:00.0015", "!more digits of a second"},
    {"DateTime64(0)", ANY, "1970-01-01 00:01:00", "3c00000000000000"},
    {"DateTime64(9)", ANY, "2262-04-11 23:47:16.854775807", "ffffffffffffff7f"},
    {"DateTime64(9)", ANY, "2262-04-11 23:47:16.854775808", "!out of range"},
    {"DateTime64(6)", ANY, "1899-12-31 23:59:59", "!out of range"},
    {"DateTime64(6)", ANY, "2300-01-01 00:00:00", "!out of range"},
    {"DateTime64(6)", ANY, "294276-12-31 23:59:59.999999", "!out of range"},
    {"Time", ANY, "24:00:00", "80510100"},
    {"Time", ANY, "00:00:01.5", "!more digits of a second"},
    {"Time", ANY, "00:00:01+02", "!no time"},
    {"Time", ANY, "24:00:01", "!no time"},
    {"Time64(3)", ANY, "00:00:01.5", "dc05000000000000"},
    {"UUID", ANY, "00010203-0405-0607-0809-0a0b0c0d0e0f", "0706050403020100" "0f0e0d0c0b0a0908"},
    {"UUID", ANY, "00010203-0405-0607-0809-0a0b0c0d0e0", "!no UUID"},
    {"UUID", ANY, "00010203-0405-0607-0809-0a0b0c0d0e0g", "!no UUID"},
    {"IPv4", ANY, "1.2.3.4", "04030201"},
    {"IPv4", ANY, "1.2.3.256", "!no IPv4"},
    {"IPv4", ANY, "1.2.3", "!no IPv4"},
    {"IPv4", ANY, "1.2.3.04", "!no IPv4"},
    {"IPv4", ANY, "1.2.3.4/24", "!netmask"},
    {"IPv4", ANY, "::1", "!no IPv4"},
    {"IPv6", ANY, "::", HEX_0 HEX_0},
    {"IPv6", ANY, "::1", HEX_0 "0000000000000001"},
    {"IPv6", ANY, "2001:db8::ff00:42:8329", "20010db800000000" "0000ff0000428329"},
    {"IPv6", ANY, "1:2:3:4:5:6:7:8", "0001000200030004" "0005000600070008"},
    {"IPv6", ANY, "1::", "0001000000000000" HEX_0},
    {"IPv6", ANY, "::ffff:1.2.3.4", HEX_0 "0000ffff01020304"},
    {"IPv6", ANY, "::1.2.3.4", HEX_0 "0000000001020304"},
    {"IPv6", ANY, "64:ff9b::1.2.3.4", "0064ff9b00000000" "0000000001020304"},
    {"IPv6", ANY, "1:2:3:4:5:6:7", "!no IPv6"},
    {"IPv6", ANY, "1:2:3:4:5:6:7:8:9", "!no IPv6"},
    {"IPv6", ANY, "1:2:3:4::5:6:7:8", "!no IPv6"},
    {"IPv6", ANY, "1::2::3", "!no IPv6"},
    {"IPv6", ANY, ":1", "!no IPv6"},
    {"IPv6", ANY, "1:", "!no IPv6"},
    {"IPv6", ANY, "12345::", "!no IPv6"},
    {"IPv6", ANY, "1.2.3.4", "!no IPv6"},
    {"IPv6", ANY, "", "!no IPv6"},
    {"Enum8('a' = 1, 'b' = -2)", ANY, "b", "fe"},
    {"Enum16('a' = 300)", ANY, "a", "2c01"},
    {"Enum16('a' = 300)", ANY, "300", "!no member"},
    {"Nullable(Int8)", ANY, NULL, "01"},
    {"Nullable(Int8)", ANY, "5", "0005"},
    {"Nullable(Int8)", ANY, "x", "!no integer"},
    {"LowCardinality(Nullable(String))", ANY, "x", "000178"},
    {"LowCardinality(String)", ANY, NULL, "!NULL"},
    {"SimpleAggregateFunction(sum, Int16)", ANY, "1", "0100"},
    {"Array(Int8)", ANY, "{}", "00"},
    {"Array(Int8)", ANY, "{1,-1}", "0201ff"},
    {"Array(Nullable(Int8))", ANY, "{1,NULL}", "02000101"},
    {"Array(Int8)", ANY, "{1,NULL}", "!NULL"},
    {"Array(Int8)", ANY, "{1,300}", "!out of range"},
    {"Array(Int8)", ANY, "{1", "!not followed"},
    {"Array(Int8)", ANY, "{1}x", "!something follows"},
    {"Array(Int8)", ANY, "{,}", "!an item is missing"},
    {"Array(Int8)", ANY, "1", "!no array"},
    {"Array(Int8)", ANY, "", "!no array"},
    {"Array(Int8)", ANY, "{{1}}", "!more dimensions"},
    {"Array(Int8)", ANY, "[0:1]={1,2}", "!begin at 1"},
    {"Array(Array(Int8))", ANY, "{{1,2},{3,4}}", "02020102020304"},
    {"Array(Array(Int8))", ANY, "{1}", "!no array"},
    {"Array(Array(String))", ANY, "{{\"}\",\"\\\"\"}}", "010201" "7d0122"},
    {"Array(String)", TR_TYPE_TEXT, "{a,\"b c\",\"\\\"\\\\\",\"NULL\",\"\"}", "05016103622063" "02225c044e554c4c00"},
    {"Array(Tuple(Int8, Nullable(String)))", ANY, "{\"(1,x)\",\"(2,)\",\"(3,\\\"\\\")\"}", "03010001780201030000"},
    {"Map(String, Nullable(Int8))", ANY, "\"a\"=>\"1\", \"b\"=>NULL", "020161000101" "6201"},
    {"Map(String, Int8)", ANY, "", "00"},
    {"Map(String, Int8)", ANY, "\"a\"=>NULL", "!NULL"},
    {"Map(String, Int8)", ANY, "\"a\"=>", "!value is not quoted"},
    {"Map(String, Int8)", ANY, "\"a\"", "!value is missing"},
    {"Map(String, Int8)", ANY, "\"a\"=>\"1\",\"b\"=>\"1\"", "!comma"},
    {"Map(Int8, Array(Int8))", ANY, "\"1\"=>\"{1,2}\"", "0101020102"},
    {"Tuple(a Int8, b String)", ANY, "(1,\"a\"\"b\\\\\")", "0104" "6122625c"},
    {"Tuple(Int8)", ANY, "(1,2)", "!more items"},
    {"Tuple(Int8, Int8)", ANY, "(1)", "!fewer items"},
    {"Tuple(Int8, Int8)", ANY, "(1,)", "!NULL"},
    {"Tuple(Int8, Tuple(Nullable(String)))", ANY, "(1,\"(\"\"x y\"\")\")", "010003782079"},
    {"Nested(a Int8, b String)", ANY, "{\"(1,x)\"}", "01010178"},
};

static int cell(struct tr_rowbinary *rb, const struct value *v, struct tr_buf *out, struct tr_err *err)
{
    struct tr_slice s = tr_slice_str(v->text);
    struct tr_ch_from from = {v->from, TR_TYPE_OPAQUE};
    return tr_rowbinary_cell(rb, type_of(v->type), from, v->text ? &s : NULL, out, err);
}

static void texts_become_bytes_or_are_refused(void **state)
{
    (void)state;
    struct tr_rowbinary rb = {0};
    struct tr_buf out = {0}, hex = {0};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        const struct value *v = &values[i];
        struct tr_err err = {0};
        tr_buf_clear(&out);
        tr_buf_clear(&hex);
        assert_int_equal(tr_buf_append_str(&out, "before"), TR_OK);
        int rc = cell(&rb, v, &out, &err);
        if (v->hex[0] == '!') {
            if (rc != TR_REJECT || !strstr(err.msg, v->hex + 1) || err.domain != TR_DOM_SCHEMA)
                fail_msg("%s of '%s': %d '%s'", v->type, v->text ? v->text : "NULL", rc, err.msg);
            assert_int_equal(out.n, 6);
            continue;
        }
        if (rc != TR_OK)
            fail_msg("%s of '%s': %s", v->type, v->text ? v->text : "NULL", err.msg);
        assert_int_equal(tr_hex_encode(&hex, tr_slice_sub(tr_buf_slice(&out), 6, out.n)), TR_OK);
        if (strcmp(tr_buf_cstr(&hex), v->hex) != 0)
            fail_msg("%s of '%s': %s, not %s", v->type, v->text ? v->text : "NULL", tr_buf_cstr(&hex), v->hex);
    }
    tr_buf_done(&out);
    tr_buf_done(&hex);
    tr_rowbinary_done(&rb);
}

/* A block of one scalar is its head and the row's bytes. */
static void blocks_of_one_scalar_are_rows(void **state)
{
    (void)state;
    struct tr_rowbinary rb = {0};
    struct tr_buf row = {0}, block = {0};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        const struct value *v = &values[i];
        struct tr_chnative_column c = {tr_slice_str("c"), type_of(v->type), {v->from, TR_TYPE_OPAQUE}};
        struct tr_slice s = tr_slice_str(v->text);
        struct tr_chnative *b = NULL;
        struct tr_err err = {0};
        tr_buf_clear(&row);
        tr_buf_clear(&block);
        assert_int_equal(tr_chnative_new(&c, 1, &b, &err), TR_OK);
        int rc = tr_chnative_cell(b, 0, v->text ? &s : NULL, &err), row_rc = cell(&rb, v, &row, NULL);
        assert_int_equal(rc, row_rc);
        if (rc < 0) {
            assert_int_equal(tr_chnative_bytes(b), 0);
            if (!strstr(err.msg, v->hex + 1))
                fail_msg("%s of '%s': %s", v->type, v->text ? v->text : "NULL", err.msg);
        } else if (!c.type->depth && v->text) {
            tr_chnative_row(b);
            assert_int_equal(tr_chnative_finish(b, &block, &err), TR_OK);
            assert_true(block.n > row.n + 4);
            assert_memory_equal(block.p + block.n - row.n, row.p, row.n);
        }
        tr_chnative_free(b);
    }
    tr_buf_done(&row);
    tr_buf_done(&block);
    tr_rowbinary_done(&rb);
}

static void assert_hex(struct tr_slice s, const char *expected)
{
    struct tr_buf hex = {0};
    assert_int_equal(tr_hex_encode(&hex, s), TR_OK);
    assert_string_equal(hex.n ? tr_buf_cstr(&hex) : "", expected);
    tr_buf_done(&hex);
}

static int cell_of(struct tr_chnative *b, uint32_t column, const char *text)
{
    struct tr_slice s = tr_slice_str(text);
    return tr_chnative_cell(b, column, text ? &s : NULL, NULL);
}

static void a_block_holds_columns(void **state)
{
    (void)state;
    struct tr_chnative_column c[] = {
        {tr_slice_str("a"), type_of("Nullable(Int8)"), {0, 0}},
        {tr_slice_str("b"), type_of("Array(Nullable(String))"), {0, 0}},
        {tr_slice_str("m"), type_of("Map(LowCardinality(String), Array(Int8))"), {0, 0}},
        {tr_slice_str("t"), type_of("Tuple(x Int8, y Date32)"), {0, 0}},
    };
    static const char rows[] = "0402"
                               "0161" "0e" "4e756c6c61626c6528496e743829" "0001" "0500"
                               "0162" "17" "4172726179284e756c6c61626c6528537472696e672929" "0200000000000000" "0200000000000000" "0001" "0178" "00"
                               "016d" "18" "4d617028537472696e672c20417272617928496e74382929" "0100000000000000" "0200000000000000" "016b" "016c" "0200000000000000" "0200000000000000" "0708"
                               "0174" "17" "5475706c65287820496e74382c207920446174653332" "29" "0900" "00000000" "219cffff";
    struct tr_chnative *b = NULL;
    struct tr_buf out = {0};
    assert_int_equal(tr_chnative_new(c, 4, &b, NULL), TR_OK);
    assert_int_equal(tr_chnative_finish(b, &out, NULL), TR_OK);
    assert_int_equal(out.n, 0); /* no rows, no block */
    for (int turn = 0; turn < 2; turn++) {
        tr_buf_clear(&out);
        assert_int_equal(cell_of(b, 0, "5"), TR_OK);
        assert_int_equal(cell_of(b, 1, "{x,NULL}"), TR_OK);
        assert_int_equal(cell_of(b, 2, "\"k\"=>\"{7,8}\""), TR_OK);
        assert_int_equal(cell_of(b, 3, "(9,1970-01-01)"), TR_OK);
        tr_chnative_row(b);
        size_t whole = tr_chnative_bytes(b);
        /* a row that is refused in its third column leaves nothing */
        assert_int_equal(cell_of(b, 0, NULL), TR_OK);
        assert_int_equal(cell_of(b, 1, "{gone,gone}"), TR_OK);
        assert_int_equal(cell_of(b, 2, "\"gone\"=>\"{1}\", \"k\"=>\"{1,300}\""), TR_REJECT);
        tr_chnative_drop(b);
        assert_int_equal(tr_chnative_bytes(b), whole);
        assert_int_equal(cell_of(b, 3, "(1,2024-01-01)"), TR_OK);
        assert_int_equal(cell_of(b, 0, "1"), TR_OK);
        tr_chnative_drop(b);
        assert_int_equal(tr_chnative_bytes(b), whole);
        assert_int_equal(cell_of(b, 0, NULL), TR_OK);
        assert_int_equal(cell_of(b, 1, "{}"), TR_OK);
        assert_int_equal(cell_of(b, 2, "\"l\"=>\"{}\""), TR_OK);
        assert_int_equal(tr_chnative_default(b, 3, NULL), TR_OK);
        tr_chnative_row(b);
        assert_int_equal(tr_chnative_rows(b), 2);
        assert_int_equal(tr_chnative_finish(b, &out, NULL), TR_OK);
        assert_hex(tr_buf_slice(&out), rows);
    }
    tr_chnative_free(b);
    tr_buf_done(&out);
}

static void defaults_are_the_types_own(void **state)
{
    (void)state;
    static const struct { const char *type, *hex; } defaults[] = {
        {"Int256", HEX_0 HEX_0 HEX_0 HEX_0}, {"String", "00"}, {"Nullable(String)", "01"}, {"FixedString(2)", "0000"}, {"Enum8('a' = 3, 'b' = -2)", "fe"}, {"Enum16('a' = 3)", "0300"}, {"Date32", "219cffff"},
        {"Array(Int8)", "00"}, {"Map(String, Int8)", "00"}, {"Tuple(Int8, Nullable(Int8), Tuple(Date))", "00010000"}, {"LowCardinality(Nullable(String))", "01"}, {"UUID", HEX_0 HEX_0},
    };
    struct tr_buf out = {0};
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++) {
        tr_buf_clear(&out);
        assert_int_equal(tr_rowbinary_default(type_of(defaults[i].type), &out, NULL), TR_OK);
        assert_hex(tr_buf_slice(&out), defaults[i].hex);
    }
    tr_buf_done(&out);
}

static void long_arrays_have_long_counts(void **state)
{
    (void)state;
    struct tr_rowbinary rb = {0};
    struct tr_buf text = {0}, out = {0};
    for (uint32_t n = 126; n < 20000; n = n < 130 ? n + 1 : n * 2 - 127) {
        tr_buf_clear(&text);
        tr_buf_clear(&out);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(tr_buf_printf(&text, "%c%u", i ? ',' : '{', i % 100), TR_OK);
        assert_int_equal(tr_buf_append_u8(&text, '}'), TR_OK);
        struct tr_slice s = tr_buf_slice(&text);
        assert_int_equal(tr_rowbinary_cell(&rb, type_of("Array(Int8)"), (struct tr_ch_from){0, 0}, &s, &out, NULL), TR_OK);
        uint8_t count[TR_VARINT_MAX];
        struct tr_buf c = {count, 0, sizeof count};
        tr_buf_put_varint(&c, n);
        assert_int_equal(out.n, c.n + n);
        assert_memory_equal(out.p, count, c.n);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(out.p[c.n + i], i % 100);
    }
    tr_buf_done(&text);
    tr_buf_done(&out);
    tr_rowbinary_done(&rb);
}

/* Blocks and rows of everything that the table above accepts, again and again. */
static int everything(struct tr_chnative **blocks, struct tr_rowbinary *rb, struct tr_buf *out, struct tr_err *err)
{
    int rc = TR_OK;
    tr_buf_clear(out);
    for (size_t i = 0; i < sizeof values / sizeof values[0] && rc == TR_OK; i++) {
        const struct value *v = &values[i];
        struct tr_slice s = tr_slice_str(v->text);
        if (!blocks[i])
            continue;
        const struct tr_ch_type *t = type_of(v->type);
        for (int k = 0; k < 20 && rc == TR_OK; k++) {
            rc = tr_chnative_cell(blocks[i], 0, v->text ? &s : NULL, err);
            if (rc == TR_OK)
                rc = tr_rowbinary_cell(rb, t, (struct tr_ch_from){v->from, TR_TYPE_OPAQUE}, v->text ? &s : NULL, out, err);
            if (rc == TR_OK)
                tr_chnative_row(blocks[i]);
        }
        if (rc == TR_OK)
            rc = tr_chnative_finish(blocks[i], out, err);
    }
    return rc;
}

static void once_warm_nothing_is_allocated(void **state)
{
    (void)state;
    enum { N = sizeof values / sizeof values[0] };
    static struct tr_chnative *blocks[N];
    struct tr_rowbinary rb = {0};
    struct tr_buf out = {0};
    struct tr_err err = {0};
    for (size_t i = 0; i < N; i++) {
        struct tr_chnative_column c = {tr_slice_str("c"), type_of(values[i].type), {values[i].from, TR_TYPE_OPAQUE}};
        if (values[i].hex[0] != '!')
            assert_int_equal(tr_chnative_new(&c, 1, &blocks[i], &err), TR_OK);
    }
    assert_int_equal(everything(blocks, &rb, &out, &err), TR_OK);
    struct tr_arena kept = arena; /* the types of the second turn come from memory that is there */
    tr_arena_init(&arena, 1 << 20, 0);
    assert_non_null(tr_arena_alloc(&arena, 1));
    tr_alloc_fail_from(1);
    int rc = everything(blocks, &rb, &out, &err);
    tr_alloc_fail_nth(0);
    if (rc != TR_OK)
        fail_msg("%s", err.msg);
    tr_arena_done(&arena);
    arena = kept;
    for (size_t i = 0; i < N; i++)
        blocks[i] = tr_chnative_free(blocks[i]);
    tr_rowbinary_done(&rb);
    tr_buf_done(&out);
}

static void elements_of_bytea_are_bytes(void **state)
{
    (void)state;
    struct tr_rowbinary rb = {0};
    struct tr_buf out = {0};
    struct tr_slice s = tr_slice_str("{{\"\\\\x41\"},{\"\\\\x\"}}");
    assert_int_equal(tr_rowbinary_cell(&rb, type_of("Array(Array(String))"), (struct tr_ch_from){TR_TYPE_ARRAY, TR_TYPE_BYTES}, &s, &out, NULL), TR_OK);
    assert_hex(tr_buf_slice(&out), "02" "010141" "0100");
    tr_buf_clear(&out);
    assert_int_equal(tr_rowbinary_cell(&rb, type_of("String"), (struct tr_ch_from){TR_TYPE_ARRAY, TR_TYPE_BYTES}, &s, &out, NULL), TR_OK);
    assert_int_equal(out.n, s.n + 1);
    tr_buf_done(&out);
    tr_rowbinary_done(&rb);
}

static void a_header_names_columns_and_types(void **state)
{
    (void)state;
    struct tr_slice names[] = {tr_slice_str("id"), tr_slice_str("v")};
    const struct tr_ch_type *types[] = {type_of("Int8"), type_of("LowCardinality(String)")};
    struct tr_buf out = {0};
    assert_int_equal(tr_rowbinary_header(names, types, 2, &out, NULL), TR_OK);
    assert_hex(tr_buf_slice(&out), "02" "026964" "0176" "04496e7438" "164c6f7743617264696e616c69747928537472696e6729");
    tr_buf_done(&out);
}

/* ---- floats ---- */

static void check_float(const char *text)
{
    struct tr_decfloat d;
    double f64 = strtod(text, NULL);
    float f32 = strtof(text, NULL);
    uint64_t b64;
    uint32_t b32;
    memcpy(&b64, &f64, sizeof b64);
    memcpy(&b32, &f32, sizeof b32);
    assert_true(tr_decfloat_scan(tr_slice_str(text), &d));
    if (tr_decfloat_f64(&d) != b64 || tr_decfloat_f32(&d) != b32)
        fail_msg("%s: %016llx %08x", text, (unsigned long long)tr_decfloat_f64(&d), tr_decfloat_f32(&d));
}

static void floats_are_the_nearest(void **state)
{
    (void)state;
    static const char *const edges[] = {
        "0", "-0", "0.0", "1", "9007199254740993", "9007199254740992.5", "9007199254740993.00000000000000000000000000000000000001", "4.9e-324", "2.4703282292062327e-324", "2.4703282292062328e-324",
        "2.2250738585072011e-308", "1.7976931348623157e308", "1.7976931348623158e308", "1e400", "1e-400", "1e100000000000", "1e-100000000000", "8388608.5", "8388609.5", "16777217", "16777219", "1e-45", "7e-46", "7.1e-46",
        "3.4028235677973366e38", "3.4028235677973365e38", "123456789012345678901234567890", "0.000000000000000000000000000000000000000000000000000000000000000000000123",
        "1.00000000000000000000000000000000000000000000000001", "100000000000000000000000000000000000000000000000000000000000000000000000000",
    };
    char text[1200];
    struct tr_prng r;
    tr_prng_init(&r, 7);
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++)
        check_float(edges[i]);
    for (int i = 0; i < 20000; i++) {
        uint64_t b = tr_prng_u64(&r);
        double v;
        memcpy(&v, &b, sizeof v);
        if ((b >> 52 & 0x7ff) == 0x7ff)
            continue;
        snprintf(text, sizeof text, "%.17g", v);
        check_float(text);
        snprintf(text, sizeof text, "%llu.%llue%d", (unsigned long long)(b % 1000000), (unsigned long long)(b >> 30), (int)(b % 120) - 60);
        check_float(text);
        snprintf(text, sizeof text, "%.17g", ((double)(b >> 40) + 0.5) / 1024); /* ties of Float32 */
        check_float(text);
        if (i % 20 == 0) {
            snprintf(text, sizeof text, "%.*e", (int)(b % 780), v);
            check_float(text);
        }
    }
}

static int set_up(void **state)
{
    (void)state;
    tr_arena_init(&arena, 4096, 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tr_arena_done(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_are_printed_as_they_came),
        cmocka_unit_test(trees_say_what_bytes_are_made_of),
        cmocka_unit_test(types_are_refused_by_name),
        cmocka_unit_test(texts_become_bytes_or_are_refused),
        cmocka_unit_test(blocks_of_one_scalar_are_rows),
        cmocka_unit_test(a_block_holds_columns),
        cmocka_unit_test(defaults_are_the_types_own),
        cmocka_unit_test(long_arrays_have_long_counts),
        cmocka_unit_test(once_warm_nothing_is_allocated),
        cmocka_unit_test(elements_of_bytea_are_bytes),
        cmocka_unit_test(a_header_names_columns_and_types),
        cmocka_unit_test(floats_are_the_nearest),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
