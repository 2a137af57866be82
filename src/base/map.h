/* map.h - open-addressing hash maps: bytes -> pointer, and u64 -> u64 or pointer.
 *
 * Purpose: lookups by table name, key, relation id. Linear probing, backward-shift deletion (no
 *          tombstones), at most 3/4 full.
 * Owner:   the map owns copies of its byte keys; values are the caller's. A zeroed struct is an empty map.
 * Threads: one at a time. Errors: TR_NOMEM from put only, and then the map is as before.
 *
 * Iteration order depends only on the operations done, never on addresses, so simulated runs repeat.
 * Nothing may be put or deleted during an iteration; values may be replaced through put of an existing key.
 */
#ifndef TR_MAP_H
#define TR_MAP_H

#include <tailrace/err.h>
#include <tailrace/slice.h>

struct tr_map_entry;

struct tr_map {
	struct tr_map_entry *v;
	size_t n, cap; /* cap: 0 or a power of two */
	uint64_t seed; /* may be set while empty, where keys come from an adversary */
};

void tr_map_init(struct tr_map *m);
void tr_map_done(struct tr_map *m); /* frees keys, not values */
/* 0: new; 1: replaced, and *ret_old (may be NULL) has the old value; TR_NOMEM. val may be NULL. */
int tr_map_put(struct tr_map *m, struct tr_slice key, void *val, void **ret_old);
void *tr_map_get(const struct tr_map *m, struct tr_slice key); /* NULL if absent (or the value is NULL) */
bool tr_map_find(const struct tr_map *m, struct tr_slice key, void **ret_val);
bool tr_map_del(struct tr_map *m, struct tr_slice key, void **ret_val); /* false: was absent */
void tr_map_clear(struct tr_map *m);
/* size_t it = 0; while (tr_map_next(&m, &it, &key, &val)) ...  Key borrowed. */
bool tr_map_next(const struct tr_map *m, size_t *it, struct tr_slice *ret_key, void **ret_val);

struct tr_u64map_entry {
	uint64_t key, val;
};

struct tr_u64map {
	struct tr_u64map_entry *v;
	uint8_t *used;
	size_t n, cap;
};

void tr_u64map_init(struct tr_u64map *m);
void tr_u64map_done(struct tr_u64map *m);
int tr_u64map_reserve(struct tr_u64map *m, size_t n); /* n entries fit without allocating */
int tr_u64map_put(struct tr_u64map *m, uint64_t key, uint64_t val); /* 0: new; 1: replaced; TR_NOMEM */
bool tr_u64map_find(const struct tr_u64map *m, uint64_t key, uint64_t *ret_val);
bool tr_u64map_del(struct tr_u64map *m, uint64_t key, uint64_t *ret_val);
void tr_u64map_clear(struct tr_u64map *m);
bool tr_u64map_next(const struct tr_u64map *m, size_t *it, uint64_t *ret_key, uint64_t *ret_val);

static inline int
tr_u64map_put_ptr(struct tr_u64map *m, uint64_t key, void *val)
{
	return tr_u64map_put(m, key, (uint64_t)(uintptr_t)val);
}

static inline void *
tr_u64map_get_ptr(const struct tr_u64map *m, uint64_t key)
{
	uint64_t v;

	return tr_u64map_find(m, key, &v) ? (void *)(uintptr_t)v : NULL;
}

#endif
