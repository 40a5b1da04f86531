/* SPDX-License-Identifier: Apache-2.0 */
/* A table of text: the first column to the left, the others to the right, as wide as their longest cell. */
#ifndef MXA_TABLE_H
#define MXA_TABLE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct table {
    size_t columns, count, capacity;
    char **cells; /* row by row */
    bool failed;  /* memory ran out: cells are missing */
} table;

void table_start(table *t, size_t columns);

/* Add the next cell. */
void table_add(table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Print to stdout and free. False after a message if memory ran out. */
bool table_finish(table *t);

#endif
