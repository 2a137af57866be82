/* mem_lock.h: the lock of a source or sink in memory. While it is held, allocations are the test kit's own, and are spared when those of what is tested fail. */
#ifndef TR_MEM_LOCK_H
#define TR_MEM_LOCK_H

#include "alloc.h"
#include "thread.h"

static inline void tr_mem_lock(struct tr_mutex *m)
{
    tr_mutex_lock(m);
    tr_alloc_spared(true);
}

static inline void tr_mem_unlock(struct tr_mutex *m)
{
    tr_alloc_spared(false);
    tr_mutex_unlock(m);
}

#endif
