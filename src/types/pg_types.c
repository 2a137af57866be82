#include "pg_types.h"

#include <stddef.h>

#include <tailrace/schema.h>

#include "check.h"

static const struct {
    uint32_t oid;
    uint8_t type;
} builtin[] = {
    {16, TR_TYPE_BOOL},       {17, TR_TYPE_BYTES},        {18, TR_TYPE_TEXT},      {19, TR_TYPE_TEXT},     {20, TR_TYPE_INT64},
    {21, TR_TYPE_INT16},      {23, TR_TYPE_INT32},        {25, TR_TYPE_TEXT},      {26, TR_TYPE_INT64},    {114, TR_TYPE_JSON},
    {142, TR_TYPE_TEXT},      {650, TR_TYPE_NETWORK},     {700, TR_TYPE_FLOAT32},  {701, TR_TYPE_FLOAT64}, {774, TR_TYPE_NETWORK},
    {829, TR_TYPE_NETWORK},   {869, TR_TYPE_NETWORK},     {1042, TR_TYPE_TEXT},    {1043, TR_TYPE_TEXT},   {1082, TR_TYPE_DATE},
    {1083, TR_TYPE_TIME},     {1114, TR_TYPE_TIMESTAMP},  {1184, TR_TYPE_TIMESTAMPTZ}, {1186, TR_TYPE_INTERVAL}, {1266, TR_TYPE_TIMETZ},
    {1700, TR_TYPE_DECIMAL},  {2950, TR_TYPE_UUID},       {3802, TR_TYPE_JSON},
};

uint8_t tr_pgtype_canonical(uint32_t base_oid, char typtype, char typcategory)
{
    for (size_t i = 0; i < TR_ARRAY_LEN(builtin); i++)
        if (builtin[i].oid == base_oid)
            return builtin[i].type;
    if (typtype == 'e')
        return TR_TYPE_ENUM;
    if (typtype == 'r' || typtype == 'm')
        return TR_TYPE_RANGE;
    if (typcategory == 'A')
        return TR_TYPE_ARRAY;
    return TR_TYPE_OPAQUE;
}

void tr_pgtype_numeric(int32_t typmod, int32_t *ret_precision, int32_t *ret_scale)
{
    *ret_precision = -1;
    *ret_scale = 0;
    if (typmod < 4)
        return;
    int32_t m = typmod - 4;
    *ret_precision = (m >> 16) & 0xffff;
    int32_t s = m & 0x7ff; /* 11 bits, signed since PostgreSQL 15 */
    *ret_scale = s >= 1024 ? s - 2048 : s;
}
