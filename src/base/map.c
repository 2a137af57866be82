#include "map.h"

#include "alloc.h"
#include "check.h"
#include "hash.h"

struct tr_map_entry {
	char *key; /* NULL: free slot */
	size_t n;
	uint64_t hash;
	void *val;
};

void
tr_map_init(struct tr_map *m)
{
	*m = (struct tr_map){ 0 };
}

void
tr_map_clear(struct tr_map *m)
{
	for (size_t i = 0; i < m->cap; i++) {
		tr_free(m->v[i].key);
		m->v[i].key = NULL;
	}
	m->n = 0;
}

void
tr_map_done(struct tr_map *m)
{
	if (!m)
		return;
	tr_map_clear(m);
	tr_free(m->v);
	tr_map_init(m);
}

/* The slot that holds key, or the free one where it belongs. cap > n always, so this ends. */
static size_t
map_slot(const struct tr_map *m, uint64_t hash, struct tr_slice key)
{
	size_t i = hash & (m->cap - 1);

	while (m->v[i].key) {
		const struct tr_map_entry *e = &m->v[i];

		if (e->hash == hash && tr_slice_eq(tr_slice_of(e->key, e->n), key))
			break;
		i = (i + 1) & (m->cap - 1);
	}
	return i;
}

static int
map_grow(struct tr_map *m)
{
	size_t cap = m->cap ? m->cap * 2 : 16;
	struct tr_map_entry *old = m->v, *v = tr_calloc(cap, sizeof *v);

	if (!v)
		return TR_NOMEM;
	for (size_t k = 0; k < m->cap; k++) {
		size_t i = old[k].hash & (cap - 1);

		if (!old[k].key)
			continue;
		while (v[i].key)
			i = (i + 1) & (cap - 1);
		v[i] = old[k];
	}
	tr_free(old);
	m->v = v;
	m->cap = cap;
	return TR_OK;
}

int
tr_map_put(struct tr_map *m, struct tr_slice key, void *val, void **ret_old)
{
	uint64_t hash = tr_hash64_seed(m->seed, key.p, key.n);
	struct tr_map_entry *e;
	char *copy;

	if (m->cap) {
		e = &m->v[map_slot(m, hash, key)];
		if (e->key) {
			if (ret_old)
				*ret_old = e->val;
			e->val = val;
			return 1;
		}
	}
	copy = tr_strndup(key);
	if (!copy)
		return TR_NOMEM;
	if ((m->n + 1) * 4 > m->cap * 3 && map_grow(m) < 0) {
		tr_free(copy);
		return TR_NOMEM;
	}
	e = &m->v[map_slot(m, hash, key)];
	*e = (struct tr_map_entry){ copy, key.n, hash, val };
	m->n++;
	return 0;
}

bool
tr_map_find(const struct tr_map *m, struct tr_slice key, void **ret_val)
{
	const struct tr_map_entry *e;

	if (!m->n)
		return false;
	e = &m->v[map_slot(m, tr_hash64_seed(m->seed, key.p, key.n), key)];
	if (!e->key)
		return false;
	if (ret_val)
		*ret_val = e->val;
	return true;
}

void *
tr_map_get(const struct tr_map *m, struct tr_slice key)
{
	void *val = NULL;

	tr_map_find(m, key, &val);
	return val;
}

bool
tr_map_del(struct tr_map *m, struct tr_slice key, void **ret_val)
{
	size_t i, j, mask = m->cap - 1;

	if (!m->n)
		return false;
	i = map_slot(m, tr_hash64_seed(m->seed, key.p, key.n), key);
	if (!m->v[i].key)
		return false;
	if (ret_val)
		*ret_val = m->v[i].val;
	tr_free(m->v[i].key);
	m->n--;
	/* Close the gap: each follower moves back unless that would be before its home slot. */
	for (j = (i + 1) & mask; m->v[j].key; j = (j + 1) & mask) {
		if (((j - m->v[j].hash) & mask) >= ((j - i) & mask)) {
			m->v[i] = m->v[j];
			i = j;
		}
	}
	m->v[i].key = NULL;
	return true;
}

bool
tr_map_next(const struct tr_map *m, size_t *it, struct tr_slice *ret_key, void **ret_val)
{
	while (*it < m->cap) {
		const struct tr_map_entry *e = &m->v[(*it)++];

		if (!e->key)
			continue;
		if (ret_key)
			*ret_key = tr_slice_of(e->key, e->n);
		if (ret_val)
			*ret_val = e->val;
		return true;
	}
	return false;
}

/* ---- u64 ---- */

void
tr_u64map_init(struct tr_u64map *m)
{
	*m = (struct tr_u64map){ 0 };
}

void
tr_u64map_clear(struct tr_u64map *m)
{
	if (m->cap)
		memset(m->used, 0, m->cap);
	m->n = 0;
}

void
tr_u64map_done(struct tr_u64map *m)
{
	if (!m)
		return;
	tr_free(m->v);
	tr_free(m->used);
	tr_u64map_init(m);
}

static size_t
u64_slot(const struct tr_u64map *m, uint64_t key)
{
	size_t i = tr_hash_u64(key) & (m->cap - 1);

	while (m->used[i] && m->v[i].key != key)
		i = (i + 1) & (m->cap - 1);
	return i;
}

int
tr_u64map_reserve(struct tr_u64map *m, size_t n)
{
	struct tr_u64map next = { 0 };
	size_t cap = m->cap ? m->cap : 16;

	if (n > PTRDIFF_MAX / 64)
		return TR_NOMEM;
	while (cap * 3 < n * 4)
		cap *= 2;
	if (cap == m->cap)
		return TR_OK;
	next.v = tr_calloc(cap, sizeof *next.v);
	next.used = tr_calloc(cap, 1);
	if (!next.v || !next.used) {
		tr_u64map_done(&next);
		return TR_NOMEM;
	}
	next.cap = cap;
	next.n = m->n;
	for (size_t k = 0; k < m->cap; k++) {
		size_t i;

		if (!m->used[k])
			continue;
		i = u64_slot(&next, m->v[k].key);
		next.v[i] = m->v[k];
		next.used[i] = 1;
	}
	tr_u64map_done(m);
	*m = next;
	return TR_OK;
}

int
tr_u64map_put(struct tr_u64map *m, uint64_t key, uint64_t val)
{
	size_t i;

	if (m->cap) {
		i = u64_slot(m, key);
		if (m->used[i]) {
			m->v[i].val = val;
			return 1;
		}
	}
	if (tr_u64map_reserve(m, m->n + 1) < 0)
		return TR_NOMEM;
	i = u64_slot(m, key);
	m->v[i] = (struct tr_u64map_entry){ key, val };
	m->used[i] = 1;
	m->n++;
	return 0;
}

bool
tr_u64map_find(const struct tr_u64map *m, uint64_t key, uint64_t *ret_val)
{
	size_t i;

	if (!m->n)
		return false;
	i = u64_slot(m, key);
	if (!m->used[i])
		return false;
	if (ret_val)
		*ret_val = m->v[i].val;
	return true;
}

bool
tr_u64map_del(struct tr_u64map *m, uint64_t key, uint64_t *ret_val)
{
	size_t i, j, mask = m->cap - 1;

	if (!m->n)
		return false;
	i = u64_slot(m, key);
	if (!m->used[i])
		return false;
	if (ret_val)
		*ret_val = m->v[i].val;
	m->n--;
	for (j = (i + 1) & mask; m->used[j]; j = (j + 1) & mask) {
		if (((j - tr_hash_u64(m->v[j].key)) & mask) >= ((j - i) & mask)) {
			m->v[i] = m->v[j];
			i = j;
		}
	}
	m->used[i] = 0;
	return true;
}

bool
tr_u64map_next(const struct tr_u64map *m, size_t *it, uint64_t *ret_key, uint64_t *ret_val)
{
	while (*it < m->cap) {
		size_t i = (*it)++;

		if (!m->used[i])
			continue;
		if (ret_key)
			*ret_key = m->v[i].key;
		if (ret_val)
			*ret_val = m->v[i].val;
		return true;
	}
	return false;
}
