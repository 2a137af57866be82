/* fs.h - the only way to files.
 *
 * Purpose: what the change log, archive and control rooms need of a file system, behind one seam: the real one
 *          (tr_fs_posix) and one in memory that crashes by seed (fs_sim.h).
 * Owner:   the opener owns a struct tr_file until tr_file_close. tr_fs_posix is static; a simulated one is its maker's.
 * Threads: a struct tr_fs may be used by many threads; a struct tr_file by many for pread and fdatasync, and by one for the rest.
 * Errors:  err->domain is SYS, err->code the errno, the message names the path. The code says what to do next:
 *          TR_NOT_READY  ENOENT: there is no such file (yet)
 *          TR_STALE      EEXIST, ENOTEMPTY: something is there already
 *          TR_RETRY      no space, quota or descriptors left; a lock somebody else holds: later, when that is cured
 *          TR_EOF        a read beyond the end
 *          TR_NOMEM      no memory
 *          TR_FATAL      all else, and every failed sync or zero-fill sync: after one, the kernel may have dropped the
 *                        dirty pages and report success the next time; only recovery from what is on disk is sound.
 *
 * Implementations provide raw operations that may be short or interrupted and return -errno; the loops, messages and codes
 * are here, once, so that the simulated short reads exercise the very code that runs in production.
 *
 * A file's bytes are durable after tr_file_fdatasync; its *name* only after tr_fs_fsync_dir of its directory. Renames and
 * unlinks likewise. tr_fs_mkdir_p syncs what it makes.
 */
#ifndef TR_FS_H
#define TR_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <tailrace/err.h>

struct tr_fs;

enum tr_fs_open {
	TR_FS_RDONLY = 0,
	TR_FS_RDWR = 1,
	TR_FS_CREATE = 2, /* with RDWR: mode 0640 */
	TR_FS_EXCL = 4,   /* with CREATE: TR_STALE if it exists */
	TR_FS_TRUNC = 8,
	TR_FS_PRIVATE = 16 /* with CREATE: mode 0600 */
};

/* Head of every implementation's file. */
struct tr_file {
	struct tr_fs *fs;
	char *path; /* as opened, for messages */
};

/* Raw operations: -errno or a result of 0 and above. */
struct tr_fs_ops {
	int (*open)(struct tr_fs *fs, const char *path, unsigned flags, struct tr_file **ret); /* path set by fs.c */
	void (*close)(struct tr_file *f);
	ssize_t (*pread)(struct tr_file *f, void *p, size_t n, uint64_t off);        /* may be short; 0 at the end */
	ssize_t (*pwrite)(struct tr_file *f, const void *p, size_t n, uint64_t off); /* may be short */
	int (*truncate)(struct tr_file *f, uint64_t size);
	int (*size)(struct tr_file *f, uint64_t *ret);
	int (*fdatasync)(struct tr_file *f);
	int (*lock)(struct tr_file *f); /* exclusive, until close; -EWOULDBLOCK */
	int (*fsync_dir)(struct tr_fs *fs, const char *dir);
	int (*mkdir)(struct tr_fs *fs, const char *path);
	int (*rename)(struct tr_fs *fs, const char *from, const char *to);
	int (*unlink)(struct tr_fs *fs, const char *path);
	int (*rmdir)(struct tr_fs *fs, const char *path);
	int (*exists)(struct tr_fs *fs, const char *path); /* 1, 0 */
	/* each name but . and .., in any order; a callback below 0 ends it with that value */
	int (*list)(struct tr_fs *fs, const char *dir, int (*each)(void *ctx, const char *name), void *ctx);
	int (*free_bytes)(struct tr_fs *fs, const char *path, uint64_t *ret);
};

struct tr_fs {
	const struct tr_fs_ops *ops;
};

struct tr_fs *tr_fs_posix(void);

int tr_fs_open(struct tr_fs *fs, const char *path, unsigned flags, struct tr_file **ret, struct tr_err *err);
struct tr_file *tr_file_close(struct tr_file *f); /* no sync; NULL is accepted; returns NULL */
const char *tr_file_path(const struct tr_file *f);

/* All n bytes. Fewer are there: with ret_n, TR_OK and the count; with ret_n NULL, TR_EOF. */
int tr_file_pread(struct tr_file *f, void *p, size_t n, uint64_t off, size_t *ret_n, struct tr_err *err);
/* All n bytes or an error, after which any part of them may have been written. */
int tr_file_pwrite(struct tr_file *f, const void *p, size_t n, uint64_t off, struct tr_err *err);
/* Zeros are written, not only promised, in pieces of 1 MiB, then synced: later writes within change no metadata. */
int tr_file_preallocate_zero(struct tr_file *f, uint64_t off, uint64_t n, struct tr_err *err);
int tr_file_truncate(struct tr_file *f, uint64_t size, struct tr_err *err);
int tr_file_size(struct tr_file *f, uint64_t *ret, struct tr_err *err);
int tr_file_fdatasync(struct tr_file *f, struct tr_err *err);

int tr_fs_fsync_dir(struct tr_fs *fs, const char *dir, struct tr_err *err);
int tr_fs_mkdir_p(struct tr_fs *fs, const char *path, struct tr_err *err); /* fine if it exists */
int tr_fs_rename(struct tr_fs *fs, const char *from, const char *to, struct tr_err *err); /* replaces to */
int tr_fs_unlink(struct tr_fs *fs, const char *path, struct tr_err *err);
int tr_fs_rmdir(struct tr_fs *fs, const char *path, struct tr_err *err);
int tr_fs_exists(struct tr_fs *fs, const char *path, bool *ret, struct tr_err *err);
int tr_fs_free_bytes(struct tr_fs *fs, const char *path, uint64_t *ret, struct tr_err *err);

struct tr_names {
	char **v; /* sorted bytewise */
	size_t n, cap;
};
int tr_fs_list(struct tr_fs *fs, const char *dir, struct tr_names *ret, struct tr_err *err);
void tr_names_done(struct tr_names *names);

/* An exclusive lock file that holds our pid; released by tr_file_close (never unlinked, or two could hold it).
 * TR_RETRY names the process that holds it. */
int tr_fs_lock(struct tr_fs *fs, const char *path, struct tr_file **ret, struct tr_err *err);

/* Whole small files (at most max bytes, else TR_REJECT); *ret is NUL-terminated and the caller's to free(). */
int tr_fs_read_file(struct tr_fs *fs, const char *path, size_t max, char **ret, size_t *ret_n, struct tr_err *err);
/* Replaces path atomically and durably: path.tmp, sync, rename, sync of the directory. */
int tr_fs_write_file(struct tr_fs *fs, const char *path, const void *p, size_t n, struct tr_err *err);

#endif
