/* fs_sim.h - a file system in memory that crashes by seed.
 *
 * Purpose: to find out what recovery does with every state that a power failure may leave behind.
 * Owner:   the maker; tr_fs_sim_free frees everything. Files still open must be closed before.
 * Threads: any (one lock inside); reproducible only if the calls come in a reproducible order.
 * Errors:  as fs.h; the controls below do not fail.
 *
 * Model. Each file has its live content, what was durable at its last fdatasync, and the writes and truncations since. A
 * crash starts from the durable content and takes those in order: a truncation is kept or lost; a write is split at
 * 512-byte sectors and each piece is kept (1/2), lost (1/4), torn: only a first part of it is kept (1/8), or garbled: its bytes
 * are random (1/8). Bytes outside unsynced writes never change, not even within the same sector: like SQLite's
 * powersafe-overwrite, and unlike a disk that fails. A file that a kept piece lies beyond the end of grows, with zeros
 * between. Of the directory changes since the directory's last sync (create, mkdir, rename, unlink) each is kept or lost by itself;
 * a rename is never half done, a file made anew under a name whose removal was lost is lost with it, and so is what lies in a directory that is.
 * After a crash every open file answers EIO and can only be closed; locks are gone.
 */
#ifndef TR_FS_SIM_H
#define TR_FS_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "fs.h"

struct tr_fs *tr_fs_sim_new(uint64_t seed); /* NULL without memory */
struct tr_fs *tr_fs_sim_free(struct tr_fs *fs);

void tr_fs_sim_crash(struct tr_fs *fs);
void tr_fs_sim_kill(struct tr_fs *fs); /* only the process dies: what it wrote stays, what it had open or locked is its no more */
/* Bytes that all files together may hold; writes beyond get ENOSPC after what still fits. UINT64_MAX: no bound. */
void tr_fs_sim_set_full(struct tr_fs *fs, uint64_t bytes);
/* Reads and writes do a random part of what was asked, or are interrupted. */
void tr_fs_sim_short_io(struct tr_fs *fs, bool on);
/* Live and durable content alike; false: there is no such byte. */
bool tr_fs_sim_flip_bit(struct tr_fs *fs, const char *path, uint64_t bit_offset);
/* The nth raw operation from now (1: the next; all kinds count but close and size) fails with errno_value; 0 disarms. */
void tr_fs_sim_fail_nth(struct tr_fs *fs, uint64_t nth, int errno_value);
/* Raw operations so far, as counted above: to choose an nth, or to crash at each in turn. */
uint64_t tr_fs_sim_ops(struct tr_fs *fs);

#endif
