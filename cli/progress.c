/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include "cli.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define QUIET_SECONDS 1.0
#define FRAME_NS      200000000L
#define BAR_WIDTH     30

/* All fields below the lock are read and written with it held. */
static struct {
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ending, drawn;
    const char *label;
    int64_t done, steps;
    double start;
} bar = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static void draw(void)
{
    const double seconds = cli_seconds() - bar.start;
    if (seconds < QUIET_SECONDS)
        return;
    const double share = bar.steps > 0 ? (double)bar.done / (double)bar.steps : 0;
    const int filled = (int)(share * BAR_WIDTH);
    char cells[BAR_WIDTH + 1];
    memset(cells, '.', BAR_WIDTH);
    memset(cells, '#', (size_t)filled);
    cells[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r\033[K%-16.16s [%s] %3.0f %% %.0f s", bar.label, cells, 100 * share, seconds);
    fflush(stderr);
    bar.drawn = true;
}

static void *draw_frames(void *unused)
{
    pthread_mutex_lock(&bar.lock);
    while (!bar.ending) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += FRAME_NS;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&bar.changed, &bar.lock, &until);
        if (!bar.ending)
            draw();
    }
    pthread_mutex_unlock(&bar.lock);
    return unused;
}

void progress_begin(const char *label, int64_t steps)
{
    if (!isatty(STDERR_FILENO) || bar.running)
        return;
    bar.label = label;
    bar.done = 0;
    bar.steps = steps;
    bar.start = cli_seconds();
    bar.ending = bar.drawn = false;
    bar.running = pthread_create(&bar.thread, NULL, draw_frames, NULL) == 0;
}

void progress_label(const char *label)
{
    pthread_mutex_lock(&bar.lock);
    bar.label = label;
    pthread_mutex_unlock(&bar.lock);
}

void progress_step(void)
{
    pthread_mutex_lock(&bar.lock);
    if (bar.done < bar.steps)
        bar.done++;
    pthread_mutex_unlock(&bar.lock);
}

void progress_end(void)
{
    if (!bar.running)
        return;
    pthread_mutex_lock(&bar.lock);
    bar.ending = true;
    pthread_cond_signal(&bar.changed);
    pthread_mutex_unlock(&bar.lock);
    pthread_join(bar.thread, NULL);
    bar.running = false;
    if (bar.drawn)
        fputs("\r\033[K", stderr);
}
