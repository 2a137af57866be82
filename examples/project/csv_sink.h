/*
 * csv_sink.h: a sink written against tailrace's installed headers: each table a CSV file (RFC 4180, with a header), rows appended.
 *
 * A batch is durable when its bytes and the file's length are (fdatasync). A line that a crash left torn is cut off when the table is bound. Delivery
 * is at least once: what was written and not committed comes again after a crash.
 */
#ifndef CSV_SINK_H
#define CSV_SINK_H

#include <tailrace/component.h>

extern const struct tr_sink_type csv_sink_type;

#endif
