/*
 * lines_source.h: a source written against tailrace's installed headers: the lines of a text file, each a payload, in one lane.
 *
 * Position: the offset behind a line. What is committed is kept in STATE_DIR/NAME.position, written so that a crash leaves the old one or the new one. With
 * `follow` the source waits for more at the end of the file; without, it ends there. A last line without a line feed is one without `follow` only:
 * with it, the rest may be yet to come. A file that is shorter than the committed position is another file: refused.
 */
#ifndef LINES_SOURCE_H
#define LINES_SOURCE_H

#include <tailrace/component.h>

extern const struct tr_source_type lines_source_type;

#endif
