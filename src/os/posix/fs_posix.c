#include "fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "alloc.h"
#include "check.h"

struct posix_file {
	struct tr_file file;
	int fd;
};

static int
fd_of(struct tr_file *f)
{
	return tr_container_of(f, struct posix_file, file)->fd;
}

static int
result(int rc)
{
	return rc < 0 ? -errno : rc;
}

static int
posix_open(struct tr_fs *fs, const char *path, unsigned flags, struct tr_file **ret)
{
	struct posix_file *f = tr_calloc(1, sizeof *f);
	int how = O_CLOEXEC | (flags & TR_FS_RDWR ? O_RDWR : O_RDONLY);

	(void)fs;
	if (!f)
		return -ENOMEM;
	how |= flags & TR_FS_CREATE ? O_CREAT : 0;
	how |= flags & TR_FS_EXCL ? O_EXCL : 0;
	how |= flags & TR_FS_TRUNC ? O_TRUNC : 0;
	f->fd = open(path, how, flags & TR_FS_PRIVATE ? 0600 : 0640);
	if (f->fd < 0) {
		int e = errno;

		tr_free(f);
		return -e;
	}
	*ret = &f->file;
	return 0;
}

static void
posix_close(struct tr_file *file)
{
	struct posix_file *f = tr_container_of(file, struct posix_file, file);

	close(f->fd); /* never again on EINTR: on Linux the descriptor is gone */
	tr_free(f);
}

static ssize_t
posix_pread(struct tr_file *f, void *p, size_t n, uint64_t off)
{
	ssize_t k = pread(fd_of(f), p, TR_MIN(n, (size_t)INT_MAX), (off_t)off);

	return k < 0 ? -errno : k;
}

static ssize_t
posix_pwrite(struct tr_file *f, const void *p, size_t n, uint64_t off)
{
	ssize_t k = pwrite(fd_of(f), p, TR_MIN(n, (size_t)INT_MAX), (off_t)off);

	return k < 0 ? -errno : k;
}

static int
posix_truncate(struct tr_file *f, uint64_t size)
{
	return result(ftruncate(fd_of(f), (off_t)size));
}

static int
posix_size(struct tr_file *f, uint64_t *ret)
{
	struct stat st;

	if (fstat(fd_of(f), &st) < 0)
		return -errno;
	*ret = (uint64_t)st.st_size;
	return 0;
}

static int
posix_fdatasync(struct tr_file *f)
{
	return result(fdatasync(fd_of(f)));
}

static int
posix_lock(struct tr_file *f)
{
	return result(flock(fd_of(f), LOCK_EX | LOCK_NB));
}

static int
posix_fsync_dir(struct tr_fs *fs, const char *dir)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc;

	(void)fs;
	if (fd < 0)
		return -errno;
	rc = result(fsync(fd));
	close(fd);
	return rc;
}

static int
posix_mkdir(struct tr_fs *fs, const char *path)
{
	struct stat st;

	(void)fs;
	if (mkdir(path, 0750) == 0)
		return 0;
	/* Parents that exist may be unwritable, unreadable or on a read-only mount, and that is no error. */
	if ((errno == EEXIST || errno == EROFS || errno == EACCES || errno == EPERM) && stat(path, &st) == 0)
		return S_ISDIR(st.st_mode) ? -EEXIST : -ENOTDIR;
	return -errno;
}

static int
posix_rename(struct tr_fs *fs, const char *from, const char *to)
{
	(void)fs;
	return result(rename(from, to));
}

static int
posix_unlink(struct tr_fs *fs, const char *path)
{
	(void)fs;
	return result(unlink(path));
}

static int
posix_rmdir(struct tr_fs *fs, const char *path)
{
	(void)fs;
	return result(rmdir(path));
}

static int
posix_exists(struct tr_fs *fs, const char *path)
{
	struct stat st;

	(void)fs;
	if (stat(path, &st) == 0)
		return 1;
	return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
}

static int
posix_list(struct tr_fs *fs, const char *dir, int (*each)(void *ctx, const char *name), void *ctx)
{
	DIR *d = opendir(dir);
	const struct dirent *e;
	int rc = 0;

	(void)fs;
	if (!d)
		return -errno;
	while (rc >= 0) {
		errno = 0;
		e = readdir(d);
		if (!e) {
			rc = -errno;
			break;
		}
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			rc = each(ctx, e->d_name);
	}
	closedir(d);
	return rc < 0 ? rc : 0;
}

static int
posix_free_bytes(struct tr_fs *fs, const char *path, uint64_t *ret)
{
	struct statvfs st;

	(void)fs;
	if (statvfs(path, &st) < 0)
		return -errno;
	*ret = (uint64_t)st.f_bavail * st.f_frsize;
	return 0;
}

struct tr_fs *
tr_fs_posix(void)
{
	static const struct tr_fs_ops ops = {
		.open = posix_open,
		.close = posix_close,
		.pread = posix_pread,
		.pwrite = posix_pwrite,
		.truncate = posix_truncate,
		.size = posix_size,
		.fdatasync = posix_fdatasync,
		.lock = posix_lock,
		.fsync_dir = posix_fsync_dir,
		.mkdir = posix_mkdir,
		.rename = posix_rename,
		.unlink = posix_unlink,
		.rmdir = posix_rmdir,
		.exists = posix_exists,
		.list = posix_list,
		.free_bytes = posix_free_bytes,
	};
	static struct tr_fs fs = { &ops };

	return &fs;
}
