#include "fs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "check.h"
#include "proc.h"

enum { PIECE = 1 << 20, INTERRUPTS_MAX = 1000 };

static int
code_of(int e)
{
	switch (e) {
	case ENOENT:
		return TR_NOT_READY;
	case EEXIST:
	case ENOTEMPTY:
		return TR_STALE;
	case ENOSPC:
	case EDQUOT:
	case EMFILE:
	case ENFILE:
	case EWOULDBLOCK:
		return TR_RETRY;
	case ENOMEM:
		return TR_NOMEM;
	default:
		return TR_FATAL;
	}
}

/* raw < 0 is -errno. */
static int
failed(struct tr_err *err, int64_t raw, const char *verb, const char *path)
{
	int e = (int)-raw;

	return tr_err_sys(err, code_of(e), e, "%s %s", verb, path);
}

int
tr_fs_open(struct tr_fs *fs, const char *path, unsigned flags, struct tr_file **ret, struct tr_err *err)
{
	struct tr_file *f = NULL;
	char *copy = tr_strdup(path);
	int rc;

	if (!copy)
		return failed(err, -ENOMEM, "open", path);
	do
		rc = fs->ops->open(fs, path, flags, &f);
	while (rc == -EINTR);
	if (rc < 0) {
		tr_free(copy);
		return failed(err, rc, flags & TR_FS_CREATE ? "create" : "open", path);
	}
	f->fs = fs;
	f->path = copy;
	*ret = f;
	return TR_OK;
}

struct tr_file *
tr_file_close(struct tr_file *f)
{
	char *path;

	if (!f)
		return NULL;
	path = f->path;
	f->fs->ops->close(f);
	tr_free(path);
	return NULL;
}

const char *
tr_file_path(const struct tr_file *f)
{
	return f->path;
}

int
tr_file_pread(struct tr_file *f, void *p, size_t n, uint64_t off, size_t *ret_n, struct tr_err *err)
{
	uint8_t *b = p;
	size_t done = 0;

	while (done < n) {
		ssize_t k = f->fs->ops->pread(f, b + done, n - done, off + done);

		if (k == -EINTR)
			continue;
		if (k < 0)
			return failed(err, k, "read", f->path);
		if (k == 0)
			break;
		done += (size_t)k;
	}
	if (ret_n)
		*ret_n = done;
	else if (done < n)
		return tr_err_set(err, TR_EOF, TR_DOM_SYS, "read %s: ends at %llu, wanted %zu bytes from %llu", f->path,
		                  (unsigned long long)(off + done), n, (unsigned long long)off);
	return TR_OK;
}

int
tr_file_pwrite(struct tr_file *f, const void *p, size_t n, uint64_t off, struct tr_err *err)
{
	const uint8_t *b = p;
	size_t done = 0;
	int stuck = 0;

	while (done < n) {
		ssize_t k = f->fs->ops->pwrite(f, b + done, n - done, off + done);

		if (k == -EINTR)
			continue;
		if (k < 0)
			return failed(err, k, "write", f->path);
		/* POSIX allows 0 for a regular file only in theory; never spin on it */
		if (k == 0 && ++stuck == INTERRUPTS_MAX)
			return failed(err, -EIO, "write", f->path);
		done += (size_t)k;
	}
	return TR_OK;
}

int
tr_file_preallocate_zero(struct tr_file *f, uint64_t off, uint64_t n, struct tr_err *err)
{
	uint64_t done = 0;
	uint8_t *zeros = tr_calloc(1, PIECE);
	int rc = TR_OK;

	if (!zeros)
		return failed(err, -ENOMEM, "preallocate", f->path);
	while (done < n && rc == TR_OK) {
		size_t k = (size_t)TR_MIN(n - done, (uint64_t)PIECE);

		rc = tr_file_pwrite(f, zeros, k, off + done, err);
		done += k;
	}
	tr_free(zeros);
	return rc < 0 ? rc : tr_file_fdatasync(f, err);
}

int
tr_file_truncate(struct tr_file *f, uint64_t size, struct tr_err *err)
{
	int rc;

	do
		rc = f->fs->ops->truncate(f, size);
	while (rc == -EINTR);
	return rc < 0 ? failed(err, rc, "truncate", f->path) : TR_OK;
}

int
tr_file_size(struct tr_file *f, uint64_t *ret, struct tr_err *err)
{
	int rc = f->fs->ops->size(f, ret);

	return rc < 0 ? failed(err, rc, "size of", f->path) : TR_OK;
}

int
tr_file_fdatasync(struct tr_file *f, struct tr_err *err)
{
	int rc = f->fs->ops->fdatasync(f);

	/* not even EINTR is tried again: see fs.h */
	return rc < 0 ? tr_err_sys(err, TR_FATAL, -rc, "sync %s", f->path) : TR_OK;
}

int
tr_fs_fsync_dir(struct tr_fs *fs, const char *dir, struct tr_err *err)
{
	int rc = fs->ops->fsync_dir(fs, dir);

	return rc < 0 ? tr_err_sys(err, TR_FATAL, -rc, "sync directory %s", dir) : TR_OK;
}

/* The directory that holds path's last name, as a new string. */
static char *
parent_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	if (!slash)
		return tr_strdup(".");
	return tr_strndup(tr_slice_of(path, slash == path ? 1 : (size_t)(slash - path)));
}

static int
sync_parent(struct tr_fs *fs, const char *path, struct tr_err *err)
{
	char *dir = parent_of(path);
	int rc = dir ? tr_fs_fsync_dir(fs, dir, err) : failed(err, -ENOMEM, "sync directory of", path);

	tr_free(dir);
	return rc;
}

/* Also of one that was there: whoever made it may have ended before the name was durable. But not every directory above ours is one that we may open. */
static int
sync_made(struct tr_fs *fs, const char *path, bool ours, struct tr_err *err)
{
	struct tr_err why = { 0 };
	int rc = sync_parent(fs, path, &why);
	int code = why.domain == TR_DOM_SYS ? (int)why.code : 0;
	bool no_say = code == EACCES || code == EPERM || code == EROFS || code == EINVAL || code == EOPNOTSUPP || code == ENOSYS;

	if (rc == TR_OK || (!ours && no_say))
		return TR_OK;
	if (err)
		*err = why;
	return rc;
}

int
tr_fs_mkdir_p(struct tr_fs *fs, const char *path, struct tr_err *err)
{
	char *s = tr_strdup(path);
	int rc = TR_OK;

	if (!s)
		return failed(err, -ENOMEM, "make directory", path);
	for (size_t i = 1; rc == TR_OK && s[0]; i++) {
		char c = s[i];
		int raw;

		if (c != '/' && c != '\0')
			continue;
		s[i] = '\0';
		raw = s[i - 1] == '/' ? -EEXIST : fs->ops->mkdir(fs, s);
		if (raw == 0 || (raw == -EEXIST && s[i - 1] != '/'))
			rc = sync_made(fs, s, raw == 0, err);
		else if (raw != -EEXIST)
			rc = failed(err, raw, "make directory", s);
		s[i] = c;
		if (c == '\0')
			break;
	}
	tr_free(s);
	return rc;
}

int
tr_fs_rename(struct tr_fs *fs, const char *from, const char *to, struct tr_err *err)
{
	int rc = fs->ops->rename(fs, from, to);

	return rc < 0 ? tr_err_sys(err, code_of(-rc), -rc, "rename %s to %s", from, to) : TR_OK;
}

int
tr_fs_unlink(struct tr_fs *fs, const char *path, struct tr_err *err)
{
	int rc = fs->ops->unlink(fs, path);

	return rc < 0 ? failed(err, rc, "remove", path) : TR_OK;
}

int
tr_fs_rmdir(struct tr_fs *fs, const char *path, struct tr_err *err)
{
	int rc = fs->ops->rmdir(fs, path);

	return rc < 0 ? failed(err, rc, "remove directory", path) : TR_OK;
}

int
tr_fs_exists(struct tr_fs *fs, const char *path, bool *ret, struct tr_err *err)
{
	int rc = fs->ops->exists(fs, path);

	if (rc < 0)
		return failed(err, rc, "look for", path);
	*ret = rc > 0;
	return TR_OK;
}

int
tr_fs_free_bytes(struct tr_fs *fs, const char *path, uint64_t *ret, struct tr_err *err)
{
	int rc = fs->ops->free_bytes(fs, path, ret);

	return rc < 0 ? failed(err, rc, "free space of", path) : TR_OK;
}

static int
add_name(void *ctx, const char *name)
{
	struct tr_names *names = ctx;

	if (names->n == names->cap) {
		size_t cap = names->cap ? names->cap * 2 : 16;
		char **v = (char **)tr_realloc((void *)names->v, cap * sizeof *v);

		if (!v)
			return -ENOMEM;
		names->v = v;
		names->cap = cap;
	}
	names->v[names->n] = tr_strdup(name);
	return names->v[names->n] ? (names->n++, 0) : -ENOMEM;
}

static int
by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int
tr_fs_list(struct tr_fs *fs, const char *dir, struct tr_names *ret, struct tr_err *err)
{
	struct tr_names names = { 0 };
	int rc = fs->ops->list(fs, dir, add_name, &names);

	if (rc < 0) {
		tr_names_done(&names);
		return failed(err, rc, "list directory", dir);
	}
	if (names.n)
		qsort((void *)names.v, names.n, sizeof *names.v, by_name);
	*ret = names;
	return TR_OK;
}

void
tr_names_done(struct tr_names *names)
{
	if (!names)
		return;
	for (size_t i = 0; i < names->n; i++)
		tr_free(names->v[i]);
	tr_free((void *)names->v);
	*names = (struct tr_names){ 0 };
}

static int
lock_held(struct tr_file *f, struct tr_err *err)
{
	char pid[24] = "";
	size_t n = 0;

	if (tr_file_pread(f, pid, sizeof pid - 1, 0, &n, NULL) < 0)
		n = 0;
	pid[n] = '\0';
	pid[strspn(pid, "0123456789")] = '\0';
	/* not tr_err_sys: what errno says of it ("temporarily unavailable") only confuses */
	tr_err_set(err, TR_RETRY, TR_DOM_SYS, "%s is locked by %s%s: stop it first, or use another directory", f->path,
	           pid[0] ? "process " : "another process", pid);
	if (err)
		err->code = EWOULDBLOCK;
	return TR_RETRY;
}

int
tr_fs_lock(struct tr_fs *fs, const char *path, struct tr_file **ret, struct tr_err *err)
{
	struct tr_file *f = NULL;
	char pid[24];
	int rc = tr_fs_open(fs, path, TR_FS_RDWR | TR_FS_CREATE, &f, err);

	if (rc < 0)
		return rc;
	do
		rc = fs->ops->lock(f);
	while (rc == -EINTR);
	if (rc == -EWOULDBLOCK) {
		rc = lock_held(f, err);
	} else if (rc < 0) {
		rc = failed(err, rc, "lock", path);
	} else {
		snprintf(pid, sizeof pid, "%d\n", tr_proc_pid());
		rc = tr_file_truncate(f, 0, err);
		if (rc == TR_OK)
			rc = tr_file_pwrite(f, pid, strlen(pid), 0, err);
	}
	if (rc < 0)
		tr_file_close(f);
	else
		*ret = f;
	return rc;
}

int
tr_fs_read_file(struct tr_fs *fs, const char *path, size_t max, char **ret, size_t *ret_n, struct tr_err *err)
{
	struct tr_file *f = NULL;
	uint64_t size = 0;
	size_t n = 0;
	char *p = NULL;
	int rc = tr_fs_open(fs, path, TR_FS_RDONLY, &f, err);

	if (rc == TR_OK)
		rc = tr_file_size(f, &size, err);
	if (rc == TR_OK && size > max)
		rc = tr_err_set(err, TR_REJECT, TR_DOM_SYS, "read %s: %llu bytes are more than the %zu allowed", path,
		                (unsigned long long)size, max);
	if (rc == TR_OK) {
		p = tr_malloc((size_t)size + 1);
		rc = p ? tr_file_pread(f, p, (size_t)size, 0, &n, err) : failed(err, -ENOMEM, "read", path);
	}
	tr_file_close(f);
	if (rc < 0) {
		tr_free(p);
		return rc;
	}
	p[n] = '\0';
	*ret = p;
	if (ret_n)
		*ret_n = n;
	return TR_OK;
}

int
tr_fs_write_file(struct tr_fs *fs, const char *path, const void *p, size_t n, struct tr_err *err)
{
	struct tr_file *f = NULL;
	size_t cap = strlen(path) + sizeof ".tmp";
	char *tmp = tr_malloc(cap);
	int rc;

	if (!tmp)
		return failed(err, -ENOMEM, "write", path);
	snprintf(tmp, cap, "%s.tmp", path);
	rc = tr_fs_open(fs, tmp, TR_FS_RDWR | TR_FS_CREATE | TR_FS_TRUNC, &f, err);
	if (rc == TR_OK)
		rc = tr_file_pwrite(f, p, n, 0, err);
	if (rc == TR_OK)
		rc = tr_file_fdatasync(f, err);
	tr_file_close(f);
	if (rc == TR_OK)
		rc = tr_fs_rename(fs, tmp, path, err);
	if (rc == TR_OK)
		rc = sync_parent(fs, path, err);
	tr_free(tmp);
	return rc;
}
