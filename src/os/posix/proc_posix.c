#include "proc.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tailrace/clock.h>

#include "check.h"
#include "failpoint.h"

/* A small file of /proc or /sys as a string. */
static bool
read_small(const char *path, char *out, size_t n)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t k;

	if (fd < 0)
		return false;
	k = read(fd, out, n - 1);
	close(fd);
	if (k < 0)
		return false;
	out[k] = '\0';
	return true;
}

/* Processors as quota/period, rounded up; INT_MAX: no limit. */
static int
quota(const char *text_quota, const char *text_period)
{
	int64_t q = strtoll(text_quota, NULL, 10), p = strtoll(text_period, NULL, 10);

	if (q <= 0 || p <= 0 || q / p >= INT_MAX)
		return INT_MAX;
	return (int)((q + p - 1) / p);
}

/* "max 100000" or "150000 100000" */
static int
cgroup2_limit(const char *dir)
{
	char path[PATH_MAX], text[64], *blank;

	if ((size_t)snprintf(path, sizeof path, "%s/cpu.max", dir) >= sizeof path ||
	    !read_small(path, text, sizeof text) || !(blank = strchr(text, ' ')))
		return INT_MAX;
	return quota(text, blank + 1);
}

static int
cgroup_limit(void)
{
	char text[4096], dir[PATH_MAX], period[64], *own, *slash;
	size_t root = strlen("/sys/fs/cgroup");
	int limit;

	/* v2: the line "0::/path"; every ancestor's limit binds too. In a container the path is "/". */
	if (read_small("/proc/self/cgroup", text, sizeof text) && (own = strstr(text, "0::/"))) {
		own += 3;
		own[strcspn(own, "\n")] = '\0';
		if ((size_t)snprintf(dir, sizeof dir, "/sys/fs/cgroup%s", own) < sizeof dir) {
			limit = cgroup2_limit(dir);
			while (strlen(dir) > root && (slash = strrchr(dir, '/'))) {
				int up;

				*slash = '\0';
				up = cgroup2_limit(dir);
				limit = TR_MIN(limit, up);
			}
			if (limit != INT_MAX)
				return limit;
		}
	}
	if (read_small("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", text, sizeof text) &&
	    read_small("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period, sizeof period))
		return quota(text, period);
	return INT_MAX;
}

int
tr_proc_cpus(void)
{
	cpu_set_t set;
	int n = 1, limit = cgroup_limit();

	if (sched_getaffinity(0, sizeof set, &set) == 0)
		n = CPU_COUNT(&set);
	n = TR_MIN(n, limit);
	return TR_MAX(n, 1);
}

uint64_t
tr_proc_rss_bytes(void)
{
	char text[128], *blank;

	if (!read_small("/proc/self/statm", text, sizeof text) || !(blank = strchr(text, ' ')))
		return 0;
	return strtoull(blank + 1, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

int
tr_proc_pid(void)
{
	return (int)getpid();
}

char *
tr_proc_hostname(char *out, size_t n)
{
	if (gethostname(out, n) != 0 || !memchr(out, 0, n) || !out[0])
		snprintf(out, n, "localhost");
	return out;
}

static void
kill_self(void)
{
	kill(getpid(), SIGKILL);
	for (;;)
		pause();
}

static void
sleep_ms(uint64_t ms)
{
	tr_sleep_ns(ms > INT64_MAX / TR_NS_PER_MS ? INT64_MAX : (int64_t)ms * TR_NS_PER_MS);
}

void
tr_proc_install_failpoints(void)
{
	tr_failpoint_set_hooks(kill_self, sleep_ms);
}

static volatile sig_atomic_t stop_signals;

static void
on_stop(int sig)
{
	(void)sig;
	if (++stop_signals > 1)
		_exit(1);
}

void
tr_proc_catch_stop(void)
{
	struct sigaction stop = { .sa_handler = on_stop }, ignore = { .sa_handler = SIG_IGN };

	sigaction(SIGTERM, &stop, NULL);
	sigaction(SIGINT, &stop, NULL);
	sigaction(SIGPIPE, &ignore, NULL);
}

bool
tr_proc_stop_asked(void)
{
	return stop_signals > 0;
}
