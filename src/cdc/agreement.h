/*
 * agreement.h: may capture go on where it stopped? Decided from what source, control store and log say of themselves, before anything is
 * touched; `tailrace check` asks the same. Pure. The conditions are those of agreement.c, each with its reason in words.
 *
 * A new *epoch* is a fresh slot, and every table snapshotted anew; positions of two epochs are never compared. The slot ledger has a row
 * `creating` before the slot is made: found at start it means that we do not know how far that got, and the slot is dropped and made anew.
 */
#ifndef TR_AGREEMENT_H
#define TR_AGREEMENT_H

#include "cdc_source.h"
#include "control.h"

enum tr_agreement {
    TR_AGREE_RESUME,    /* nothing can have been missed */
    TR_AGREE_FIRST,     /* nothing has been captured yet, or the first slot was never finished: a slot is made, every table snapshotted */
    TR_AGREE_NEW_EPOCH, /* continuity was lost: likewise, in a new epoch */
    TR_AGREE_FOREIGN,   /* the slot is somebody else's: refused */
    TR_AGREE_IN_USE,    /* the slot is ours, and a process is reading it: later */
};

struct tr_agreement_facts {
    const char *slot_name;               /* configured */
    const struct tr_cdc_identity *id;    /* the source, now */
    const struct tr_cdc_slot *slot;
    const struct tr_ctl_source *src;     /* as recorded */
    const char *ledger_slot;
    enum tr_slot_state ledger;
    uint64_t tail_offset;                /* where the log ends; UINT64_MAX: not looked at */
};

/* ret_why: the reason in words; "" for RESUME. */
enum tr_agreement tr_agreement_decide(const struct tr_agreement_facts *f, char *ret_why, size_t cap);

#endif
