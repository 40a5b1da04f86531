/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include "cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 64
#define COLUMN_GAP     2

void table_start(table *t, size_t columns)
{
    *t = (table){ .columns = columns };
}

static bool grow(table *t)
{
    if (t->count < t->capacity)
        return true;
    const size_t capacity = t->capacity ? 2 * t->capacity : FIRST_CAPACITY;
    char **cells = realloc(t->cells, capacity * sizeof *cells);
    if (cells == NULL)
        return false;
    t->cells = cells;
    t->capacity = capacity;
    return true;
}

void table_add(table *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!grow(t) || vasprintf(&t->cells[t->count], format, args) < 0)
        t->failed = true;
    else
        t->count++;
    va_end(args);
}

static int column_width(const table *t, size_t column)
{
    size_t width = 0;
    for (size_t i = column; i < t->count; i += t->columns)
        if (strlen(t->cells[i]) > width)
            width = strlen(t->cells[i]);
    return (int)width;
}

/* Empty cells at the end of a row leave no blanks. */
static void print_row(const table *t, size_t first)
{
    size_t columns = t->columns;
    while (columns > 0 && t->cells[first + columns - 1][0] == '\0')
        columns--;
    for (size_t c = 0; c < columns; c++)
        printf("%*s%*s", c > 0 ? COLUMN_GAP : 0, "", c > 0 ? column_width(t, c) : -column_width(t, c),
               t->cells[first + c]);
    putchar('\n');
}

bool table_finish(table *t)
{
    for (size_t first = 0; !t->failed && first + t->columns <= t->count; first += t->columns)
        print_row(t, first);
    const bool failed = t->failed;
    for (size_t i = 0; i < t->count; i++)
        free(t->cells[i]);
    free(t->cells);
    *t = (table){ 0 };
    if (failed)
        cli_fail("out of memory: a table");
    return !failed;
}
