/*
 * pgitems.h: the items of PostgreSQL's text of a value that has several, one by one.
 *
 *   array  = "{" [item *("," item)] "}"       item: an array | NULL | text | '"' text with \" and \\ '"'       (manual, "Arrays"; bounds "[0:1]=" are refused)
 *   record = "(" item *("," item) ")"         item: nothing, which is NULL | text | '"' text with "" and \\ '"' (manual, "Composite Types")
 *   hstore = [pair *(", " pair)]              pair: '"' key '"' "=>" ('"' value '"' | NULL); items are key, value, key, …
 *
 * Items borrow from the text, or where they have escapes from scratch, which has room for as many bytes as the text. What follows the used part of
 * scratch is free for the items of an item: scratch of depth times the text's length is enough for all levels.
 */
#ifndef TR_PGITEMS_H
#define TR_PGITEMS_H

#include <tailrace/slice.h>

enum tr_pg_items_kind { TR_PG_ARRAY, TR_PG_RECORD, TR_PG_HSTORE };

struct tr_pg_items {
    const uint8_t *p, *end;
    uint8_t *scratch;
    const char *why; /* set by a refusal: what is wrong with the text */
    uint8_t kind;
    bool begun, is_value; /* is_value: HSTORE, the next item is one */
};

struct tr_pg_item {
    struct tr_slice text;
    bool null;
    bool array; /* ARRAY: the item is an array and stands there without quotes */
};

void tr_pg_items_begin(struct tr_pg_items *it, enum tr_pg_items_kind kind, struct tr_slice text, uint8_t *scratch);

/* 1: an item; 0: there is no more, and the text ends well; TR_REJECT: see why. */
int tr_pg_items_next(struct tr_pg_items *it, struct tr_pg_item *ret);

#endif
