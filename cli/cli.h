/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs of the command share: exit statuses, messages, memory and time. */
#ifndef MXA_CLI_H
#define MXA_CLI_H

#include <mxattn/mxattn.h>

enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* A verb gets its own name as argv[0] ("mxattn run", for its help) and returns the exit status. */
int verb_info(int argc, char **argv);
int verb_quantize(int argc, char **argv);
int verb_dequantize(int argc, char **argv);
int verb_run(int argc, char **argv);
int verb_compare(int argc, char **argv);
int verb_decode(int argc, char **argv);
int verb_map(int argc, char **argv);
int verb_bench(int argc, char **argv);

/*
 * Print "mxattn: " and the sentence as one line on stderr; bytes that would move the cursor become '?'.
 * CLI_FAILED.
 */
int cli_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same for what is no failure. */
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/*
 * The same for a command line that cannot be right, whatever the files hold; ends the process with
 * CLI_USAGE.
 */
_Noreturn void cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The exit status at the end: CLI_FAILED, with a message, if not all of standard output could be written. */
int cli_finish(int status);

/*
 * 64-byte aligned memory, also for 0 bytes, to be freed with free; NULL after a message that names its use.
 */
void *cli_alloc(uint64_t bytes, const char *use);

/* Seconds of a clock that only goes forward. */
double cli_seconds(void);

#endif
