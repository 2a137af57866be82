/* failpoint.h - named fault points, shipped in release builds.
 *
 * Purpose: to stop, fail or delay the program at exactly the moment a test wants. Not armed, a point costs
 *          one relaxed atomic load and a branch.
 * Owner:   a fixed table in this module, at most TR_FAILPOINTS_MAX points.
 * Threads: points may be passed by any thread. Arming and clearing are for one thread, at start or
 *          between test cases, while no other thread is inside a point.
 * Errors:  TR_REJECT from arm, naming the bad part; nothing of the text is armed then.
 *
 * Grammar (TAILRACE_FAILPOINTS, read by cli):
 *     spec   = point *( "," point )
 *     point  = name "=" action [ ":" when ]
 *     action = "kill" | "error" | "sleep:" milliseconds
 *     when   = N       only the Nth passing, from 1
 *            | N "+"   the Nth and all later ones       (without `when`: every passing)
 *
 * Name points by room and moment: "apply.after_write". base itself may neither signal nor sleep, so os
 * installs both (tr_proc_install_failpoints); without it `kill` aborts and `sleep` does nothing.
 */
#ifndef TR_FAILPOINT_H
#define TR_FAILPOINT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tailrace/err.h>

enum { TR_FAILPOINTS_MAX = 32, TR_FAILPOINT_NAME_MAX = 63 };

extern _Atomic uint32_t tr_failpoints_armed;

bool tr_failpoint_hit(const char *name);

static inline bool
tr_failpoint_pass(const char *name)
{
	return __builtin_expect(atomic_load_explicit(&tr_failpoints_armed, memory_order_relaxed) != 0, 0) &&
	       tr_failpoint_hit(name);
}

/* if (TR_FAILPOINT("log.sync")) return <the failure>;  true only for action `error`. As a statement of its own where nothing
 * can fail, only be killed or late. */
#define TR_FAILPOINT(name) tr_failpoint_pass(name)

int tr_failpoint_arm(const char *spec, struct tr_err *err); /* adds to what is armed */
void tr_failpoint_clear(void);
uint64_t tr_failpoint_hits(const char *name); /* passings since it was armed */

typedef void (*tr_failpoint_kill_fn)(void);
typedef void (*tr_failpoint_sleep_fn)(uint64_t ms);
void tr_failpoint_set_hooks(tr_failpoint_kill_fn kill_fn, tr_failpoint_sleep_fn sleep_fn);

#endif
