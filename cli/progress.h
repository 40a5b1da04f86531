/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A progress bar on stderr, drawn by a thread of its own once the work has taken a second and stderr is a
 * terminal.
 */
#ifndef MXA_PROGRESS_H
#define MXA_PROGRESS_H

#include <stdint.h>

/* One bar at a time. The label must stay valid until the next label or progress_end. */
void progress_begin(const char *label, int64_t steps);
void progress_label(const char *label);
void progress_step(void);

/* Remove the bar. Nothing happens if none was begun. */
void progress_end(void);

#endif
