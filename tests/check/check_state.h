/* SPDX-License-Identifier: Apache-2.0 */
/* What check.c shares with check_main.c alone. */
#ifndef CHECK_STATE_H
#define CHECK_STATE_H

#include "check.h"

typedef struct check_state {
    uint64_t seed;
    int rounds; /* of each entry */
    bool bench;
    const char *filter; /* part of an entry's name, or NULL */

    char entry[96]; /* "op/name/format" while one runs */
    int round;
    bool entry_failed;
    uint64_t random;

    int passed, failed, skipped; /* entries */
} check_state;

extern check_state check_now;

/* Count and report the entry that runs, if one does. */
void check_entry_end(void);

#endif
