#include "fs_sim.h"

#include <errno.h>
#include <string.h>

#include <tailrace/buf.h>

#include "alloc.h"
#include "check.h"
#include "list.h"
#include "map.h"
#include "prng.h"
#include "thread.h"

enum { SECTOR = 512 };

/* A write (data) or truncation (data.p NULL, off is the size) since the last sync. */
struct change {
	struct tr_list link;
	bool truncate;
	uint64_t off;
	struct tr_buf data;
};

struct inode {
	struct tr_list link; /* in sim.inodes: freed with the file system, for names come back after a crash */
	struct tr_buf live, durable;
	struct tr_list changes;
	bool locked;
};

/* A directory change since the last sync of dir, replayed on the durable names. */
struct dir_change {
	struct tr_list link;
	char *dir, *from, *to; /* from: a name that goes; to: a name that comes, for inode; either may be NULL */
	struct inode *inode; /* that moves, comes or goes */
};

struct sim {
	struct tr_fs fs;
	struct tr_mutex lock; /* guards all below */
	struct tr_prng prng;
	struct tr_map live, durable; /* path -> inode; of a directory: &a_directory */
	struct tr_list inodes, dir_changes;
	uint64_t crashes, full_bytes, ops, fail_at;
	int fail_errno;
	bool short_io;
};

struct sim_file {
	struct tr_file file;
	struct inode *inode;
	uint64_t born; /* crashes when it was opened */
	bool writable, holds_lock;
};

static struct inode a_directory;

static struct sim *
sim_of(struct tr_fs *fs)
{
	return tr_container_of(fs, struct sim, fs);
}

static struct sim_file *
file_of(struct tr_file *f)
{
	return tr_container_of(f, struct sim_file, file);
}

/* Counts a raw operation and says whether it is to fail. Called with the lock held. */
static int
enter(struct sim *s)
{
	s->ops++;
	if (s->fail_at && s->ops == s->fail_at) {
		s->fail_at = 0;
		return -s->fail_errno;
	}
	return 0;
}

static int
enter_file(struct sim *s, const struct sim_file *f)
{
	return f->born != s->crashes ? -EIO : enter(s);
}

/* "a//b/" and "./a/b" are "a/b". out: strlen(path) + 2 bytes at least. */
static char *
normal(const char *path)
{
	size_t n = strlen(path), k = 0;
	char *out = tr_malloc(n + 2);

	if (!out)
		return NULL;
	while (path[0] == '.' && path[1] == '/')
		path += 2;
	for (size_t i = 0; path[i]; i++)
		if (path[i] != '/' || k == 0 || out[k - 1] != '/')
			out[k++] = path[i];
	if (k > 1 && out[k - 1] == '/')
		k--;
	if (k == 0)
		out[k++] = '.';
	out[k] = '\0';
	return out;
}

static char *
dir_of(const char *normal_path)
{
	const char *slash = strrchr(normal_path, '/');

	if (!slash)
		return tr_strdup(".");
	return tr_strndup(tr_slice_of(normal_path, slash == normal_path ? 1 : (size_t)(slash - normal_path)));
}

static bool
is_root(const char *p)
{
	return strcmp(p, ".") == 0 || strcmp(p, "/") == 0;
}

static struct inode *
look(const struct tr_map *names, const char *path)
{
	return is_root(path) ? &a_directory : tr_map_get(names, tr_slice_str(path));
}

/* ---- content ---- */

static int
content_resize(struct tr_buf *b, uint64_t size)
{
	if (size > b->n) {
		if (size > PTRDIFF_MAX || tr_buf_reserve(b, (size_t)size - b->n) < 0)
			return -ENOMEM;
		memset(b->p + b->n, 0, (size_t)size - b->n);
	}
	b->n = (size_t)size;
	return 0;
}

static int
content_write(struct tr_buf *b, const uint8_t *p, size_t n, uint64_t off)
{
	if (off > PTRDIFF_MAX - n)
		return -EFBIG;
	if (off + n > b->n && content_resize(b, off + n) < 0)
		return -ENOMEM;
	if (n)
		memcpy(b->p + off, p, n);
	return 0;
}

static void
change_free(struct change *c)
{
	tr_list_del(&c->link);
	tr_buf_done(&c->data);
	tr_free(c);
}

static void
drop_changes(struct inode *i)
{
	TR_LIST_EACH(it, &i->changes)
		change_free(tr_container_of(it, struct change, link));
}

static int
remember(struct inode *i, bool truncate, uint64_t off, const void *p, size_t n)
{
	struct change *c = tr_calloc(1, sizeof *c);

	if (!c)
		return -ENOMEM;
	if (tr_buf_append(&c->data, p, n) < 0) {
		tr_free(c);
		return -ENOMEM;
	}
	c->truncate = truncate;
	c->off = off;
	tr_list_push_back(&i->changes, &c->link);
	return 0;
}

static uint64_t
bytes_held(const struct sim *s)
{
	uint64_t n = 0;
	const struct tr_list *it;

	for (it = s->inodes.next; it != &s->inodes; it = it->next)
		n += ((const struct inode *)(const void *)it)->live.n; /* link is the first field */
	return n;
}

/* ---- names ---- */

static int
remember_dir(struct sim *s, const char *from, const char *to, struct inode *inode)
{
	struct dir_change *d = tr_calloc(1, sizeof *d);

	if (!d)
		return -ENOMEM;
	d->dir = dir_of(to ? to : from);
	d->from = from ? tr_strdup(from) : NULL;
	d->to = to ? tr_strdup(to) : NULL;
	d->inode = inode;
	tr_list_push_back(&s->dir_changes, &d->link);
	TR_ASSERT(d->dir && (!from || d->from) && (!to || d->to));
	return 0;
}

enum fate { LOST, KEPT, SYNCED };

static void
dir_change_end(struct sim *s, struct dir_change *d, enum fate fate)
{
	const struct inode *there = d->to ? tr_map_get(&s->durable, tr_slice_str(d->to)) : NULL;

	/* A name is not created where an older one stands whose removal was lost: no file system shows that. */
	if (fate == KEPT && !d->from && there && there != d->inode)
		fate = LOST;
	if (fate != LOST) {
		if (d->from && tr_map_get(&s->durable, tr_slice_str(d->from)) == d->inode)
			tr_map_del(&s->durable, tr_slice_str(d->from), NULL);
		if (d->to)
			TR_ASSERT(tr_map_put(&s->durable, tr_slice_str(d->to), d->inode, NULL) >= 0);
	}
	tr_list_del(&d->link);
	tr_free(d->dir);
	tr_free(d->from);
	tr_free(d->to);
	tr_free(d);
}

static struct inode *
inode_new(struct sim *s)
{
	struct inode *i = tr_calloc(1, sizeof *i);

	if (!i)
		return NULL;
	tr_list_init(&i->changes);
	tr_list_push_back(&s->inodes, &i->link);
	return i;
}

static int
parent_exists(const struct sim *s, const char *path)
{
	char *dir = dir_of(path);
	const struct inode *i = dir ? look(&s->live, dir) : NULL;
	int rc = !dir ? -ENOMEM : !i ? -ENOENT : i != &a_directory ? -ENOTDIR : 0;

	tr_free(dir);
	return rc;
}

static int
create(struct sim *s, const char *path, struct inode **ret)
{
	struct inode *i;
	int rc = parent_exists(s, path);

	if (rc < 0)
		return rc;
	i = inode_new(s);
	if (!i || tr_map_put(&s->live, tr_slice_str(path), i, NULL) < 0)
		return -ENOMEM;
	*ret = i;
	return remember_dir(s, NULL, path, i);
}

static int
set_size(struct inode *i, uint64_t size)
{
	int rc = remember(i, true, size, NULL, 0);

	return rc < 0 ? rc : content_resize(&i->live, size);
}

static int
open_locked(struct sim *s, const char *path, unsigned flags, struct inode **ret)
{
	struct inode *i = look(&s->live, path);
	int rc = enter(s);

	if (rc < 0)
		return rc;
	if (i == &a_directory)
		return -EISDIR;
	if (i && (flags & TR_FS_CREATE) && (flags & TR_FS_EXCL))
		return -EEXIST;
	if (!i) {
		rc = flags & TR_FS_CREATE ? create(s, path, &i) : -ENOENT;
		if (rc < 0)
			return rc;
	} else if ((flags & TR_FS_TRUNC) && i->live.n) {
		rc = set_size(i, 0);
	}
	*ret = i;
	return rc;
}

static int
sim_open(struct tr_fs *fs, const char *raw, unsigned flags, struct tr_file **ret)
{
	struct sim *s = sim_of(fs);
	struct sim_file *f = tr_calloc(1, sizeof *f);
	char *path = normal(raw);
	int rc = -ENOMEM;

	if (f && path) {
		tr_mutex_lock(&s->lock);
		rc = open_locked(s, path, flags, &f->inode);
		f->born = s->crashes;
		f->writable = flags & TR_FS_RDWR;
		tr_mutex_unlock(&s->lock);
	}
	tr_free(path);
	if (rc < 0) {
		tr_free(f);
		return rc;
	}
	*ret = &f->file;
	return 0;
}

static void
sim_close(struct tr_file *file)
{
	struct sim_file *f = file_of(file);
	struct sim *s = sim_of(file->fs);

	tr_mutex_lock(&s->lock);
	if (f->holds_lock && f->born == s->crashes)
		f->inode->locked = false;
	tr_mutex_unlock(&s->lock);
	tr_free(f);
}

/* With short_io: interrupted now and then, else from 1 to n bytes. */
static ssize_t
some_of(struct sim *s, size_t n)
{
	if (!s->short_io || n == 0)
		return (ssize_t)n;
	if (tr_prng_chance(&s->prng, 1, 8))
		return -EINTR;
	return (ssize_t)(1 + tr_prng_below(&s->prng, n));
}

static ssize_t
sim_pread(struct tr_file *file, void *p, size_t n, uint64_t off)
{
	struct sim_file *f = file_of(file);
	struct sim *s = sim_of(file->fs);
	ssize_t rc;

	tr_mutex_lock(&s->lock);
	rc = enter_file(s, f);
	if (rc == 0) {
		size_t there = off < f->inode->live.n ? f->inode->live.n - (size_t)off : 0;

		rc = some_of(s, TR_MIN(n, there));
		if (rc > 0)
			memcpy(p, f->inode->live.p + off, (size_t)rc);
	}
	tr_mutex_unlock(&s->lock);
	return rc;
}

static ssize_t
write_locked(struct sim *s, struct inode *i, const void *p, size_t n, uint64_t off)
{
	ssize_t k = some_of(s, n);
	uint64_t held, end;
	int rc;

	if (k <= 0)
		return k;
	end = off + (uint64_t)k;
	held = s->full_bytes == UINT64_MAX ? 0 : bytes_held(s);
	if (s->full_bytes != UINT64_MAX && end > i->live.n && held + (end - i->live.n) > s->full_bytes) {
		uint64_t room = held < s->full_bytes ? s->full_bytes - held : 0, last = i->live.n + room;

		if (last <= off)
			return -ENOSPC;
		k = (ssize_t)(last - off);
	}
	rc = content_write(&i->live, p, (size_t)k, off);
	if (rc == 0)
		rc = remember(i, false, off, p, (size_t)k);
	return rc < 0 ? rc : k;
}

static ssize_t
sim_pwrite(struct tr_file *file, const void *p, size_t n, uint64_t off)
{
	struct sim_file *f = file_of(file);
	struct sim *s = sim_of(file->fs);
	ssize_t rc;

	tr_mutex_lock(&s->lock);
	rc = enter_file(s, f);
	if (rc == 0)
		rc = f->writable ? write_locked(s, f->inode, p, n, off) : -EBADF;
	tr_mutex_unlock(&s->lock);
	return rc;
}

static int
sim_truncate(struct tr_file *file, uint64_t size)
{
	struct sim_file *f = file_of(file);
	struct sim *s = sim_of(file->fs);
	int rc;

	tr_mutex_lock(&s->lock);
	rc = enter_file(s, f);
	if (rc == 0)
		rc = f->writable ? set_size(f->inode, size) : -EINVAL;
	tr_mutex_unlock(&s->lock);
	return rc;
}

static int
sim_size(struct tr_file *file, uint64_t *ret)
{
	struct sim_file *f = file_of(file);
	struct sim *s = sim_of(file->fs);
	int rc;

	tr_mutex_lock(&s->lock);
	rc = f->born != s->crashes ? -EIO : 0;
	if (rc == 0)
		*ret = f->inode->live.n;
	tr_mutex_unlock(&s->lock);
	return rc;
}

/* Replays onto the durable content instead of copying the live one: a sync costs what was written. */
static int
apply_change(struct tr_buf *to, const struct change *c)
{
	return c->truncate ? content_resize(to, c->off) : content_write(to, c->data.p, c->data.n, c->off);
}

static int
sim_fdatasync(struct tr_file *file)
{
	struct sim_file *f = file_of(file);
	struct sim *s = sim_of(file->fs);
	int rc;

	tr_mutex_lock(&s->lock);
	rc = enter_file(s, f);
	if (rc == 0) {
		TR_LIST_EACH(it, &f->inode->changes) {
			struct change *c = tr_container_of(it, struct change, link);

			TR_ASSERT(apply_change(&f->inode->durable, c) == 0);
			change_free(c);
		}
	}
	tr_mutex_unlock(&s->lock);
	return rc;
}

static int
sim_lock(struct tr_file *file)
{
	struct sim_file *f = file_of(file);
	struct sim *s = sim_of(file->fs);
	int rc;

	tr_mutex_lock(&s->lock);
	rc = enter_file(s, f);
	if (rc == 0 && f->inode->locked && !f->holds_lock)
		rc = -EWOULDBLOCK;
	if (rc == 0)
		f->holds_lock = f->inode->locked = true;
	tr_mutex_unlock(&s->lock);
	return rc;
}

/* Every operation on names: normalise, lock, count, act. */
typedef int (*named_fn)(struct sim *s, const char *a, const char *b, void *ctx);

static int
named(struct tr_fs *fs, const char *raw_a, const char *raw_b, named_fn fn, void *ctx)
{
	struct sim *s = sim_of(fs);
	char *a = normal(raw_a), *b = raw_b ? normal(raw_b) : NULL;
	int rc = -ENOMEM;

	if (a && (b || !raw_b)) {
		tr_mutex_lock(&s->lock);
		rc = enter(s);
		if (rc == 0)
			rc = fn(s, a, b, ctx);
		tr_mutex_unlock(&s->lock);
	}
	tr_free(a);
	tr_free(b);
	return rc;
}

static int
do_fsync_dir(struct sim *s, const char *dir, const char *unused, void *ctx)
{
	(void)unused;
	(void)ctx;
	if (look(&s->live, dir) != &a_directory)
		return -ENOENT;
	TR_LIST_EACH(it, &s->dir_changes) {
		struct dir_change *d = tr_container_of(it, struct dir_change, link);

		if (strcmp(d->dir, dir) == 0)
			dir_change_end(s, d, SYNCED);
	}
	return 0;
}

static int
sim_fsync_dir(struct tr_fs *fs, const char *dir)
{
	return named(fs, dir, NULL, do_fsync_dir, NULL);
}

static int
do_mkdir(struct sim *s, const char *path, const char *unused, void *ctx)
{
	const struct inode *i = look(&s->live, path);
	int rc;

	(void)unused;
	(void)ctx;
	if (i)
		return i == &a_directory ? -EEXIST : -ENOTDIR;
	rc = parent_exists(s, path);
	if (rc < 0)
		return rc;
	if (tr_map_put(&s->live, tr_slice_str(path), &a_directory, NULL) < 0)
		return -ENOMEM;
	return remember_dir(s, NULL, path, &a_directory);
}

static int
sim_mkdir(struct tr_fs *fs, const char *path)
{
	return named(fs, path, NULL, do_mkdir, NULL);
}

static int
do_rename(struct sim *s, const char *from, const char *to, void *ctx)
{
	struct inode *i = look(&s->live, from);
	int rc = parent_exists(s, to);

	(void)ctx;
	if (!i)
		return -ENOENT;
	if (rc < 0)
		return rc;
	if (i == &a_directory || look(&s->live, to) == &a_directory)
		return -EISDIR; /* moving directories is not simulated: nobody does it */
	if (strcmp(from, to) == 0)
		return 0;
	if (tr_map_put(&s->live, tr_slice_str(to), i, NULL) < 0)
		return -ENOMEM;
	tr_map_del(&s->live, tr_slice_str(from), NULL);
	return remember_dir(s, from, to, i);
}

static int
sim_rename(struct tr_fs *fs, const char *from, const char *to)
{
	return named(fs, from, to, do_rename, NULL);
}

static int
do_unlink(struct sim *s, const char *path, const char *unused, void *ctx)
{
	struct inode *i = look(&s->live, path);

	(void)unused;
	(void)ctx;
	if (!i)
		return -ENOENT;
	if (i == &a_directory)
		return -EISDIR;
	tr_map_del(&s->live, tr_slice_str(path), NULL);
	return remember_dir(s, path, NULL, i);
}

static int
sim_unlink(struct tr_fs *fs, const char *path)
{
	return named(fs, path, NULL, do_unlink, NULL);
}

/* The name within dir, or NULL if path is elsewhere or deeper. */
static const char *
name_in(const char *dir, const char *path)
{
	size_t n = strlen(dir);
	const char *rest;

	if (strcmp(dir, ".") == 0)
		rest = path[0] == '/' ? NULL : path;
	else if (strcmp(dir, "/") == 0)
		rest = path[0] == '/' ? path + 1 : NULL;
	else
		rest = strncmp(path, dir, n) == 0 && path[n] == '/' ? path + n + 1 : NULL;
	return rest && !strchr(rest, '/') ? rest : NULL;
}

struct lister {
	int (*each)(void *ctx, const char *name);
	void *ctx;
};

static int
do_list(struct sim *s, const char *dir, const char *unused, void *ctx)
{
	const struct lister *l = ctx;
	struct tr_slice key;
	size_t it = 0;
	int rc = 0;

	(void)unused;
	if (look(&s->live, dir) != &a_directory)
		return look(&s->live, dir) ? -ENOTDIR : -ENOENT;
	while (rc >= 0 && tr_map_next(&s->live, &it, &key, NULL)) {
		const char *name = name_in(dir, (const char *)key.p);

		if (name)
			rc = l->each(l->ctx, name);
	}
	return rc < 0 ? rc : 0;
}

static int
sim_list(struct tr_fs *fs, const char *dir, int (*each)(void *ctx, const char *name), void *ctx)
{
	struct lister l = { each, ctx };

	return named(fs, dir, NULL, do_list, &l);
}

static int
refuse_any(void *ctx, const char *name)
{
	(void)ctx;
	(void)name;
	return -ENOTEMPTY;
}

static int
do_rmdir(struct sim *s, const char *path, const char *unused, void *ctx)
{
	struct lister l = { refuse_any, NULL };
	int rc = do_list(s, path, unused, &l);

	(void)ctx;
	if (rc < 0)
		return rc;
	if (is_root(path))
		return -EBUSY;
	tr_map_del(&s->live, tr_slice_str(path), NULL);
	return remember_dir(s, path, NULL, &a_directory);
}

static int
sim_rmdir(struct tr_fs *fs, const char *path)
{
	return named(fs, path, NULL, do_rmdir, NULL);
}

static int
do_exists(struct sim *s, const char *path, const char *unused, void *ctx)
{
	(void)unused;
	(void)ctx;
	return look(&s->live, path) != NULL;
}

static int
sim_exists(struct tr_fs *fs, const char *path)
{
	return named(fs, path, NULL, do_exists, NULL);
}

static int
do_free_bytes(struct sim *s, const char *path, const char *unused, void *ctx)
{
	uint64_t *ret = ctx, held = bytes_held(s);

	(void)path;
	(void)unused;
	*ret = s->full_bytes == UINT64_MAX ? UINT64_C(1) << 40 : held < s->full_bytes ? s->full_bytes - held : 0;
	return 0;
}

static int
sim_free_bytes(struct tr_fs *fs, const char *path, uint64_t *ret)
{
	return named(fs, path, NULL, do_free_bytes, ret);
}

/* ---- the crash ---- */

static void
crash_piece(struct sim *s, struct tr_buf *to, const uint8_t *p, size_t n, uint64_t off)
{
	uint8_t junk[SECTOR];
	uint64_t fate = tr_prng_below(&s->prng, 8);

	if (fate < 2)
		return;
	if (fate == 2)
		n = (size_t)tr_prng_below(&s->prng, n); /* torn: a first part, perhaps none */
	if (fate == 3) {
		tr_prng_fill(&s->prng, junk, n);
		p = junk;
	}
	if (n)
		TR_ASSERT(content_write(to, p, n, off) == 0);
}

static void
crash_inode(struct sim *s, struct inode *i)
{
	TR_LIST_EACH(it, &i->changes) {
		struct change *c = tr_container_of(it, struct change, link);

		if (c->truncate) {
			if (tr_prng_chance(&s->prng, 1, 2))
				TR_ASSERT(content_resize(&i->durable, c->off) == 0);
		} else {
			size_t done = 0;

			while (done < c->data.n) {
				uint64_t off = c->off + done;
				size_t k = TR_MIN(c->data.n - done, (size_t)(SECTOR - off % SECTOR));

				crash_piece(s, &i->durable, c->data.p + done, k, off);
				done += k;
			}
		}
	}
	drop_changes(i);
	i->locked = false;
	tr_buf_clear(&i->live);
	TR_ASSERT(tr_buf_append(&i->live, i->durable.p, i->durable.n) == 0);
}

static bool
named_somewhere(const struct sim *s, const struct inode *i)
{
	size_t it = 0;
	void *v;

	while (tr_map_next(&s->live, &it, NULL, &v))
		if (v == i)
			return true;
	return false;
}

/* A path whose directory is lost, or NULL. */
static char *
find_orphan(const struct sim *s)
{
	struct tr_slice key;
	size_t it = 0;

	while (tr_map_next(&s->durable, &it, &key, NULL)) {
		char *dir = dir_of((const char *)key.p);
		bool held;

		TR_ASSERT(dir != NULL);
		held = look(&s->durable, dir) == &a_directory;
		tr_free(dir);
		if (!held)
			return tr_strdup((const char *)key.p);
	}
	return NULL;
}

void
tr_fs_sim_crash(struct tr_fs *fs)
{
	struct sim *s = sim_of(fs);
	struct tr_slice key;
	size_t it = 0;
	void *v;
	char *orphan;

	tr_mutex_lock(&s->lock);
	s->crashes++;
	TR_LIST_EACH(d, &s->dir_changes)
		dir_change_end(s, tr_container_of(d, struct dir_change, link), tr_prng_chance(&s->prng, 1, 2) ? KEPT : LOST);
	while ((orphan = find_orphan(s)) != NULL) {
		tr_map_del(&s->durable, tr_slice_str(orphan), NULL);
		tr_free(orphan);
	}
	tr_map_clear(&s->live);
	while (tr_map_next(&s->durable, &it, &key, &v))
		TR_ASSERT(tr_map_put(&s->live, key, v, NULL) >= 0);
	TR_LIST_EACH(i, &s->inodes) {
		struct inode *n = tr_container_of(i, struct inode, link);

		crash_inode(s, n);
		if (!named_somewhere(s, n)) /* its bytes do not count any more */
			tr_buf_clear(&n->live);
	}
	tr_mutex_unlock(&s->lock);
}

void
tr_fs_sim_kill(struct tr_fs *fs)
{
	struct sim *s = sim_of(fs);

	tr_mutex_lock(&s->lock);
	s->crashes++;
	TR_LIST_EACH(i, &s->inodes)
		tr_container_of(i, struct inode, link)->locked = false;
	tr_mutex_unlock(&s->lock);
}

/* ---- controls ---- */

void
tr_fs_sim_set_full(struct tr_fs *fs, uint64_t bytes)
{
	struct sim *s = sim_of(fs);

	tr_mutex_lock(&s->lock);
	s->full_bytes = bytes;
	tr_mutex_unlock(&s->lock);
}

void
tr_fs_sim_short_io(struct tr_fs *fs, bool on)
{
	struct sim *s = sim_of(fs);

	tr_mutex_lock(&s->lock);
	s->short_io = on;
	tr_mutex_unlock(&s->lock);
}

bool
tr_fs_sim_flip_bit(struct tr_fs *fs, const char *raw, uint64_t bit_offset)
{
	struct sim *s = sim_of(fs);
	char *path = normal(raw);
	uint64_t at = bit_offset / 8;
	uint8_t mask = (uint8_t)(1u << (bit_offset % 8));
	struct inode *i;
	bool done = false;

	tr_mutex_lock(&s->lock);
	i = path ? look(&s->live, path) : NULL;
	if (i && i != &a_directory && at < i->live.n) {
		i->live.p[at] ^= mask;
		if (at < i->durable.n)
			i->durable.p[at] ^= mask;
		done = true;
	}
	tr_mutex_unlock(&s->lock);
	tr_free(path);
	return done;
}

void
tr_fs_sim_fail_nth(struct tr_fs *fs, uint64_t nth, int errno_value)
{
	struct sim *s = sim_of(fs);

	tr_mutex_lock(&s->lock);
	s->fail_at = nth ? s->ops + nth : 0;
	s->fail_errno = errno_value;
	tr_mutex_unlock(&s->lock);
}

uint64_t
tr_fs_sim_ops(struct tr_fs *fs)
{
	struct sim *s = sim_of(fs);
	uint64_t n;

	tr_mutex_lock(&s->lock);
	n = s->ops;
	tr_mutex_unlock(&s->lock);
	return n;
}

struct tr_fs *
tr_fs_sim_new(uint64_t seed)
{
	static const struct tr_fs_ops ops = {
		.open = sim_open,
		.close = sim_close,
		.pread = sim_pread,
		.pwrite = sim_pwrite,
		.truncate = sim_truncate,
		.size = sim_size,
		.fdatasync = sim_fdatasync,
		.lock = sim_lock,
		.fsync_dir = sim_fsync_dir,
		.mkdir = sim_mkdir,
		.rename = sim_rename,
		.unlink = sim_unlink,
		.rmdir = sim_rmdir,
		.exists = sim_exists,
		.list = sim_list,
		.free_bytes = sim_free_bytes,
	};
	struct sim *s = tr_calloc(1, sizeof *s);

	if (!s)
		return NULL;
	s->fs.ops = &ops;
	tr_mutex_init(&s->lock);
	tr_prng_init(&s->prng, seed);
	tr_list_init(&s->inodes);
	tr_list_init(&s->dir_changes);
	s->full_bytes = UINT64_MAX;
	return &s->fs;
}

struct tr_fs *
tr_fs_sim_free(struct tr_fs *fs)
{
	struct sim *s;

	if (!fs)
		return NULL;
	s = sim_of(fs);
	TR_LIST_EACH(d, &s->dir_changes)
		dir_change_end(s, tr_container_of(d, struct dir_change, link), LOST);
	TR_LIST_EACH(it, &s->inodes) {
		struct inode *i = tr_container_of(it, struct inode, link);

		drop_changes(i);
		tr_buf_done(&i->live);
		tr_buf_done(&i->durable);
		tr_free(i);
	}
	tr_map_done(&s->live);
	tr_map_done(&s->durable);
	tr_mutex_done(&s->lock);
	tr_free(s);
	return NULL;
}
