/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An output file appears complete or not at all: it is written under a temporary name in the same folder,
 * flushed to disk and renamed. The temporary file goes away on failure and when a signal ends the process. A
 * path that exists and is no regular file (a pipe, /dev/null) is written directly.
 */
#ifndef MXA_OUTPUT_FILE_H
#define MXA_OUTPUT_FILE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct output_file {
    const char *path;
    char *target;    /* path with symbolic links followed */
    char *temporary; /* NULL when written directly */
    int fd;
} output_file;

/* Whether the path can be an output, before long work is done for it. False after a message. */
bool output_possible(const char *path);

/* The same for what is made of an input: the input itself is refused, whose other tensors would be lost. */
bool output_possible_from(const char *input, const char *path);

/* One output at a time. Each call returns false after a message; then nothing is left behind. */
bool output_begin(output_file *out, const char *path);
bool output_write(output_file *out, const void *data, size_t bytes);
bool output_commit(output_file *out);

/* Give up an output that was begun. */
void output_discard(output_file *out);

#endif
