/* SPDX-License-Identifier: Apache-2.0 */
#include "output_file.h"

#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPORARY_NAME "/.mxattn-XXXXXX"
#define MODE_BITS      07777

static const int ending_signals[] = { SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT };

/* The file that a signal must remove. It changes with these signals blocked. */
static const char *volatile pending;

static void remove_and_end(int signal_number)
{
    if (pending != NULL)
        unlink(pending);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void set_pending(const char *path)
{
    sigset_t ending, before;
    sigemptyset(&ending);
    for (size_t i = 0; i < sizeof ending_signals / sizeof ending_signals[0]; i++)
        sigaddset(&ending, ending_signals[i]);
    sigprocmask(SIG_BLOCK, &ending, &before);
    pending = path;
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* Ignored signals (nohup) stay ignored. A file size limit shall be an error of write, not a signal. */
static void handle_signals(void)
{
    for (size_t i = 0; i < sizeof ending_signals / sizeof ending_signals[0]; i++) {
        struct sigaction action;
        sigaction(ending_signals[i], NULL, &action);
        if (action.sa_handler != SIG_DFL)
            continue;
        action = (struct sigaction){ .sa_handler = remove_and_end, .sa_flags = (int)SA_RESETHAND };
        sigaction(ending_signals[i], &action, NULL);
    }
    signal(SIGXFSZ, SIG_IGN);
}

static bool fail_output(output_file *out, const char *what)
{
    cli_fail("%s: cannot %s: %s", out->path, what, strerror(errno));
    output_discard(out);
    return false;
}

/* Permissions of a new file; an existing one keeps its own. */
static mode_t output_mode(const char *target)
{
    struct stat info;
    if (stat(target, &info) == 0)
        return info.st_mode & MODE_BITS;
    const mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

static bool begin_temporary(output_file *out)
{
    const char *slash = strrchr(out->target, '/');
    const int folder = slash ? (int)(slash - out->target) : 1;
    if (asprintf(&out->temporary, "%.*s" TEMPORARY_NAME, folder, slash ? out->target : ".") < 0) {
        out->temporary = NULL;
        return fail_output(out, "name a temporary file");
    }
    const mode_t mode = output_mode(out->target);
    handle_signals();
    set_pending(out->temporary);
    out->fd = mkostemp(out->temporary, O_CLOEXEC);
    if (out->fd < 0) {
        set_pending(NULL);
        free(out->temporary);
        out->temporary = NULL;
        return fail_output(out, "create a file in its folder");
    }
    return fchmod(out->fd, mode) == 0 || fail_output(out, "set permissions");
}

bool output_possible(const char *path)
{
    struct stat info;
    const char *slash = strrchr(path, '/');
    const bool exists = stat(path, &info) == 0;
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    int error = 0;
    if (folder == NULL || (exists && access(path, W_OK) != 0) ||
        (!exists && access(folder, W_OK | X_OK) != 0))
        error = errno;
    else if (exists && S_ISDIR(info.st_mode))
        error = EISDIR;
    free(folder);
    if (error != 0)
        cli_fail("%s: cannot write: %s", path, strerror(error));
    return error == 0;
}

bool output_possible_from(const char *input, const char *path)
{
    struct stat in, out;
    if (stat(input, &in) == 0 && stat(path, &out) == 0 && S_ISREG(out.st_mode) && in.st_dev == out.st_dev &&
        in.st_ino == out.st_ino) {
        cli_fail("%s: is the input, whose tensors would be lost; -o must name another file", path);
        return false;
    }
    return output_possible(path);
}

bool output_begin(output_file *out, const char *path)
{
    *out = (output_file){ .path = path, .fd = -1 };
    struct stat info;
    const bool exists = stat(path, &info) == 0;
    if (!output_possible(path))
        return false;
    if (exists && !S_ISREG(info.st_mode)) {
        out->fd = open(path, O_WRONLY | O_CLOEXEC);
        return out->fd >= 0 || fail_output(out, "write");
    }
    out->target = exists ? realpath(path, NULL) : strdup(path);
    if (out->target == NULL)
        return fail_output(out, "follow the path");
    return begin_temporary(out);
}

bool output_write(output_file *out, const void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = write(out->fd, (const char *)data + done, bytes - done);
        if (n < 0 && errno != EINTR)
            return fail_output(out, "write");
        done += n > 0 ? (size_t)n : 0;
    }
    return true;
}

bool output_commit(output_file *out)
{
    if (out->temporary != NULL && fsync(out->fd) != 0)
        return fail_output(out, "write to disk");
    const int closed = close(out->fd);
    out->fd = -1;
    if (closed != 0)
        return fail_output(out, "write");
    if (out->temporary != NULL && rename(out->temporary, out->target) != 0)
        return fail_output(out, "rename");
    set_pending(NULL);
    free(out->temporary);
    out->temporary = NULL;
    output_discard(out);
    return true;
}

void output_discard(output_file *out)
{
    if (out->fd >= 0)
        close(out->fd);
    if (out->temporary != NULL) {
        unlink(out->temporary);
        set_pending(NULL);
    }
    free(out->temporary);
    free(out->target);
    *out = (output_file){ .fd = -1 };
}
