/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include "progress.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SENTENCE_BYTES 1024
#define ALIGNMENT      64

static void print_sentence(const char *format, va_list args)
{
    char text[SENTENCE_BYTES];
    progress_end();
    vsnprintf(text, sizeof text, format, args);
    for (char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == '\x7f')
            *c = '?';
    fprintf(stderr, "mxattn: %s\n", text);
}

int cli_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_sentence(format, args);
    va_end(args);
    return CLI_FAILED;
}

void cli_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_sentence(format, args);
    va_end(args);
}

void cli_usage(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_sentence(format, args);
    va_end(args);
    exit(CLI_USAGE);
}

int cli_finish(int status)
{
    errno = 0;
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == CLI_DONE)
        return cli_fail("standard output: cannot write: %s", errno ? strerror(errno) : "an earlier error");
    return status;
}

void *cli_alloc(uint64_t bytes, const char *use)
{
    void *memory = NULL;
    if (bytes < SIZE_MAX / 2)
        memory = aligned_alloc(ALIGNMENT, ((size_t)bytes / ALIGNMENT + 1) * ALIGNMENT);
    if (memory == NULL)
        cli_fail("out of memory: %s, %" PRIu64 " bytes", use, bytes);
    return memory;
}

double cli_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
