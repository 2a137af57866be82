/*
 * pg_types.h: PostgreSQL's types as canonical types. Pure.
 *
 * Built-in types are told by their oid, which PostgreSQL never changes (pg_type.dat); the rest by pg_type.typtype and
 * typcategory, which the caller has read from the catalog together with the oid a domain is based on.
 */
#ifndef TR_PG_TYPES_H
#define TR_PG_TYPES_H

#include <stdint.h>

/* base_oid: the type itself, or what a domain bottoms out in. typtype: b c d e p r m; typcategory: 'A' for arrays. */
uint8_t tr_pgtype_canonical(uint32_t base_oid, char typtype, char typcategory);

/* Digits and scale of numeric(p,s) from its type modifier; -1 and 0 when unconstrained. */
void tr_pgtype_numeric(int32_t typmod, int32_t *ret_precision, int32_t *ret_scale);

#endif
