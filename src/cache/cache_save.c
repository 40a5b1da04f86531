/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/cache_file.h"
#include "core/status.h"

/* Less what the process masks; names tried beside a path; characters that they add to it. */
enum { ALL_READ_AND_WRITE = 0666, MOST_NAMES = 1000, NAME_CHARACTERS = 32 };

/* Where bytes go: into the checksum, and into a file if there is one. */
typedef struct sink {
    FILE *file;
    uint64_t checksum;
    bool failed;
    mxa_status status; /* of reading a device's pages */
} sink;

static void put(sink *s, const void *data, size_t bytes)
{
    if (s->file)
        s->failed = s->failed || fwrite(data, 1, bytes, s->file) != bytes;
    else
        s->checksum = mxa_cache_checksum(s->checksum, data, bytes);
}

/* The near window of a query that rewind takes back: what the cache needs to go on. */
static int64_t high_first(const mxa_cache *c, const mxa_cache_sequence *s)
{
    return mxa_max(s->high_first, mxa_cache_near_first(c, mxa_max(s->length - c->opts.rewind, 0)));
}

static bool is_saved(const mxa_cache *c, const mxa_cache_sequence *s, int copy, int64_t p)
{
    const int64_t first = p * c->layout.page_tokens, end = first + c->layout.page_tokens;
    const bool needed = copy == MXA_LOW || first < c->layout.sink_end || end > high_first(c, s);
    return needed && s->table[copy][p] >= 0;
}

static void count_pages(const mxa_cache *c, mxa_cache_saved *saved)
{
    for (int64_t b = 0; b < c->opts.batch; b++) {
        const mxa_cache_sequence *const s = &c->sequences[b];
        saved[b] = (mxa_cache_saved){ s->length, high_first(c, s), { 0 } };
        for (int copy = 0; copy < MXA_COPIES; copy++)
            for (int64_t p = 0; p < mxa_cache_pages_of(c, s->length); p++)
                saved[b].n_pages[copy] += is_saved(c, s, copy, p);
    }
}

/* Rows of a part up to row n, and zeros for the rest of the page. */
static void put_rows(sink *s, const uint8_t *rows, int64_t row_bytes, int64_t n, int64_t part_bytes)
{
    static const uint8_t zeros[256];
    put(s, rows, (size_t)(n * row_bytes));
    for (int64_t left = part_bytes - n * row_bytes; left > 0; left -= (int64_t)sizeof zeros)
        put(s, zeros, (size_t)mxa_min(left, sizeof zeros));
}

/* A page whose first n tokens count. */
static void put_page(sink *s, const mxa_cache *c, int copy, const uint8_t *page, int64_t n)
{
    const mxa_kv_layout *const l = &c->layout;
    for (int64_t h = 0; h < l->heads_kv; h++) {
        const uint8_t *const record = page + h * l->head_bytes[copy];
        for (int operand = 0; operand < MXA_KV_OPERANDS; operand++) {
            const mxa_kv_part *const p = &l->part[copy][operand];
            if (!p->copy.info)
                continue;
            const bool last = operand == MXA_KV_V || !l->part[copy][MXA_KV_V].copy.info;
            const int64_t end = last ? l->head_bytes[copy] : l->part[copy][MXA_KV_V].codes;
            const int64_t g_bytes = p->copy.level == MXA_LEVEL_TOKEN ? (int64_t)sizeof(float) : 0;
            put_rows(s, record + p->codes, p->row_bytes, n, p->scales - p->codes);
            put_rows(s, record + p->scales, p->scale_cols, n, p->g - p->scales);
            put_rows(s, record + p->g, g_bytes, n, end - p->g);
        }
    }
}

/* A page in host memory. */
static const uint8_t *host_page(sink *s, const mxa_cache *c, int copy, const uint8_t *page)
{
    if (!c->ops)
        return page;
    if (s->status == MXA_OK)
        s->status = mxa_cache_result(c, c->ops->read_page(c->device, copy, page, c->host_page));
    return c->host_page;
}

static void put_sequence(sink *out, const mxa_cache *c, const mxa_cache_sequence *s)
{
    const int64_t page_tokens = c->layout.page_tokens, n = mxa_cache_pages_of(c, s->length);
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        for (int64_t p = 0; p < n; p++) {
            const int32_t index = (int32_t)p;
            if (is_saved(c, s, copy, p))
                put(out, &index, sizeof index);
        }
        for (int64_t p = 0; p < n; p++)
            if (is_saved(c, s, copy, p))
                put_page(out, c, copy, host_page(out, c, copy, c->pool[copy].pages[s->table[copy][p]]),
                         mxa_min(page_tokens, s->length - p * page_tokens));
    }
}

static void put_data(sink *s, const mxa_cache *c)
{
    if (c->has_g_v)
        put(s, c->g_v, (size_t)(c->opts.heads_kv * c->opts.head_dim_v) * sizeof(float));
    if (c->recipe.smooth_k == MXA_SMOOTH_GIVEN)
        put(s, c->sequences[0].mean, (size_t)(c->opts.heads_kv * c->opts.head_dim) * sizeof(float));
    for (int64_t b = 0; b < c->opts.batch; b++)
        put_sequence(s, c, &c->sequences[b]);
}

static mxa_status no_memory(void)
{
    return mxa_fail(MXA_ERR_MEMORY, "path: no memory for the file's header");
}

/* The header with the checksum of itself (its own digits 0) and of the data. */
static mxa_status checked_header(const mxa_cache *c, const mxa_cache_saved *saved, char **header,
                                 size_t *bytes)
{
    char *const blank = mxa_cache_header(c, saved, 0, bytes);
    if (!blank)
        return no_memory();
    sink sum = { .checksum = mxa_cache_checksum(MXA_CACHE_CHECKSUM_START, blank, *bytes) };
    free(blank);
    put_data(&sum, c);
    if (sum.status != MXA_OK)
        return sum.status;
    *header = mxa_cache_header(c, saved, sum.checksum, bytes);
    return *header ? MXA_OK : no_memory();
}

static mxa_status not_written(const char *path)
{
    return mxa_fail(MXA_ERR_FILE, "path: \"%.200s\" cannot be written: %m", path);
}

/* path is that of the file. */
static mxa_status write_file(FILE *file, const mxa_cache *c, const char *header, size_t header_bytes,
                             const char *path)
{
    uint8_t length[MXA_CACHE_FILE_LENGTH_BYTES];
    for (int i = 0; i < MXA_CACHE_FILE_LENGTH_BYTES; i++)
        length[i] = (uint8_t)((uint64_t)header_bytes >> 8 * i);
    sink s = { .file = file };
    put(&s, length, sizeof length);
    put(&s, header, header_bytes);
    put_data(&s, c);
    if (s.status != MXA_OK)
        return s.status;
    return !s.failed && fflush(file) == 0 && fsync(fileno(file)) == 0 ? MXA_OK : not_written(path);
}

/* A new file whose name is put into temporary [strlen(path) + NAME_CHARACTERS]; below 0 there is none. */
static int create_beside(const char *path, char *temporary)
{
    int fd = -1;
    errno = EEXIST;
    for (int i = 0; i < MOST_NAMES && fd < 0 && errno == EEXIST; i++) {
        snprintf(temporary, strlen(path) + NAME_CHARACTERS, "%s.%lld-%d", path, (long long)getpid(), i);
        fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, ALL_READ_AND_WRITE);
    }
    return fd;
}

/* A temporary file is written, then renamed to path. */
static mxa_status write_beside(const mxa_cache *c, const char *header, size_t header_bytes, const char *path,
                               char *temporary)
{
    const int fd = create_beside(path, temporary);
    FILE *const file = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (!file) {
        const mxa_status status = mxa_fail(MXA_ERR_FILE, "path: \"%.200s\" cannot be created: %m", temporary);
        if (fd >= 0) {
            close(fd);
            unlink(temporary);
        }
        return status;
    }
    mxa_status status = write_file(file, c, header, header_bytes, temporary);
    if (fclose(file) != 0 && status == MXA_OK)
        status = not_written(temporary);
    if (status == MXA_OK && rename(temporary, path) != 0)
        status = mxa_fail(MXA_ERR_FILE, "path: \"%.200s\" cannot be replaced: %m", path);
    if (status != MXA_OK)
        unlink(temporary);
    return status;
}

mxa_status mxa_cache_save(const mxa_cache *c, const char *path)
{
    if (!c || !path)
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", c ? "path" : "cache");
    mxa_cache_saved *const saved = calloc((size_t)c->opts.batch, sizeof *saved);
    char *const temporary = malloc(strlen(path) + NAME_CHARACTERS), *header = NULL;
    size_t header_bytes = 0;
    mxa_status status = no_memory();
    if (saved && temporary) {
        count_pages(c, saved);
        status = checked_header(c, saved, &header, &header_bytes);
    }
    if (status == MXA_OK)
        status = write_beside(c, header, header_bytes, path, temporary);
    free(header);
    free(temporary);
    free(saved);
    return status;
}
