#include "agreement.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "text.h"

static enum tr_agreement lost(const struct tr_agreement_facts *f, char *why, size_t cap)
{
    const struct tr_cdc_slot *slot = f->slot;
    char a[TR_LSN_CHARS], b[TR_LSN_CHARS];
    if (strcmp(f->src->system_id, f->id->system_id) != 0)
        snprintf(why, cap, "the source is another system (%s, was %s)", f->id->system_id, f->src->system_id);
    else if (f->src->timeline != f->id->timeline)
        snprintf(why, cap, "the source is on timeline %u, was on %u", f->id->timeline, f->src->timeline);
    else if (strcmp(f->ledger_slot, f->slot_name) != 0)
        snprintf(why, cap, "slot %s is configured, and until now it was %s, which should be dropped because it holds back WAL", f->slot_name, f->ledger_slot);
    else if (!slot->exists)
        snprintf(why, cap, "slot %s is gone", f->slot_name);
    else if (!strcmp(slot->wal_status, "lost"))
        snprintf(why, cap, "slot %s has lost WAL it needed", f->slot_name);
    else if (slot->published > slot->confirmed)
        snprintf(why, cap, "the publication was dropped and made again at %s; slot %s stands at %s and cannot decode what lies between", tr_format_lsn(slot->published, a), f->slot_name,
                 tr_format_lsn(slot->confirmed, b));
    else if (slot->confirmed > f->src->confirm_lsn)
        snprintf(why, cap, "slot %s is confirmed up to %s, our record ends at %s", f->slot_name, tr_format_lsn(slot->confirmed, a), tr_format_lsn(f->src->confirm_lsn, b));
    else if (f->tail_offset < f->src->log_offset)
        snprintf(why, cap, "the change log ends at offset %" PRIu64 ", but %" PRIu64 " was durable", f->tail_offset, f->src->log_offset);
    else
        return TR_AGREE_RESUME;
    return TR_AGREE_NEW_EPOCH;
}

enum tr_agreement tr_agreement_decide(const struct tr_agreement_facts *f, char *ret_why, size_t cap)
{
    ret_why[0] = 0;
    if (f->slot->exists && (f->ledger == TR_SLOT_NONE || strcmp(f->ledger_slot, f->slot_name) != 0)) {
        snprintf(ret_why, cap, "slot %s exists, but not in this state directory's ledger: it is another process's, or this is not its state directory; choose another slot name, or drop it",
                 f->slot_name);
        return TR_AGREE_FOREIGN;
    }
    if (f->slot->exists && f->slot->active) {
        snprintf(ret_why, cap, "slot %s is in use by server process %" PRId64 "; is a second tailrace running on it?", f->slot_name, f->slot->active_pid);
        return TR_AGREE_IN_USE;
    }
    if (f->ledger == TR_SLOT_CREATING || !f->src->system_id[0]) {
        snprintf(ret_why, cap, "%s", f->ledger == TR_SLOT_NONE ? "nothing has been captured yet" : "the slot was never finished");
        return f->src->system_id[0] ? TR_AGREE_NEW_EPOCH : TR_AGREE_FIRST;
    }
    return lost(f, ret_why, cap);
}
