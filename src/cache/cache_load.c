/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "attn/recipe.h"
#include "cache/cache_file.h"
#include "core/status.h"
#include "core/text.h"

/* The longest header that is read: a million sequences take less. */
#define HEADER_MAX ((int64_t)1 << 30)

enum { READ_BYTES = 1 << 16 };

typedef struct reader {
    FILE *file;
    const char *path;
    int64_t header_bytes, data_bytes;
    char *header; /* ended by 0 */
    mxa_cache_numbers numbers;
    mxa_cache_saved *saved;
    uint64_t checksum; /* of the header */
    const float *mean; /* that the caller expects, or NULL */
} reader;

static const float some; /* says that there is a mean or g_v; its values follow the header */

static mxa_status bad_file(const reader *r, const char *what)
{
    return mxa_fail(MXA_ERR_FILE, "path: \"%.200s\" %s", r->path, what);
}

static mxa_status no_memory(const reader *r)
{
    return mxa_fail(MXA_ERR_MEMORY, "path: no memory for what \"%.200s\" holds", r->path);
}

static mxa_status read_header(reader *r)
{
    uint8_t length[MXA_CACHE_FILE_LENGTH_BYTES];
    if (fseek(r->file, 0, SEEK_END) != 0)
        return mxa_fail(MXA_ERR_FILE, "path: \"%.200s\" cannot be read: %m", r->path);
    const int64_t file_bytes = ftell(r->file);
    rewind(r->file);
    if (fread(length, 1, sizeof length, r->file) != sizeof length)
        return bad_file(r, "is shorter than a header's length");
    uint64_t bytes = 0;
    for (int i = 0; i < MXA_CACHE_FILE_LENGTH_BYTES; i++)
        bytes |= (uint64_t)length[i] << 8 * i;
    if (bytes > HEADER_MAX || (int64_t)bytes > file_bytes - (int64_t)sizeof length)
        return bad_file(r, "is truncated, or no cache: its header does not fit");
    r->header_bytes = (int64_t)bytes;
    r->data_bytes = file_bytes - (int64_t)sizeof length - r->header_bytes;
    r->header = malloc((size_t)bytes + 1);
    if (!r->header)
        return no_memory(r);
    r->header[bytes] = 0;
    return fread(r->header, 1, (size_t)bytes, r->file) == bytes ? MXA_OK : bad_file(r, "cannot be read");
}

/* The numbers, and that the header is the one that follows from them. */
static mxa_status check_header(reader *r)
{
    if (!mxa_cache_read_numbers(r->header, &r->numbers))
        return bad_file(r, "is not a cache of this version, or its header was altered");
    mxa_cache described;
    mxa_cache_opts opts = r->numbers.opts;
    opts.mean = r->numbers.recipe.smooth_k == MXA_SMOOTH_GIVEN ? &some : NULL;
    opts.g_v = r->numbers.has_g_v ? &some : NULL;
    const mxa_status status = mxa_cache_describe_sizes(&opts, &described);
    if (status != MXA_OK)
        return bad_file(r, "holds numbers that no cache has");
    const int64_t batch = opts.batch;
    r->saved = calloc((size_t)batch, sizeof *r->saved);
    if (!r->saved)
        return no_memory(r);
    if (!mxa_cache_read_sequences(r->numbers.sequences, batch, r->saved))
        return bad_file(r, "has an altered header");
    if (mxa_cache_data_bytes(&described, r->saved) != r->data_bytes)
        return bad_file(r, "is truncated: it holds another number of bytes than its header says");
    size_t bytes = 0;
    char *header = mxa_cache_header(&described, r->saved, r->numbers.checksum, &bytes);
    if (!header)
        return no_memory(r);
    const bool same = (int64_t)bytes == r->header_bytes && memcmp(header, r->header, bytes) == 0;
    free(header);
    header = same ? mxa_cache_header(&described, r->saved, 0, &bytes) : NULL;
    if (!header)
        return same ? no_memory(r) : bad_file(r, "has an altered header");
    r->checksum = mxa_cache_checksum(MXA_CACHE_CHECKSUM_START, header, bytes);
    free(header);
    return MXA_OK;
}

static mxa_status check_number(const char *name, int64_t wanted, int64_t in_file)
{
    return wanted == in_file ? MXA_OK
                             : mxa_fail(MXA_ERR_ARG, "opts: %s %lld is not the file's %lld", name,
                                        (long long)wanted, (long long)in_file);
}

/* The caller's opts against the file's. */
static mxa_status check_opts(const mxa_cache_opts *o, const reader *r)
{
    const mxa_cache_opts *const f = &r->numbers.opts;
    mxa_cache described;
    if (o->size != sizeof *o)
        return mxa_cache_describe_opts(o, &described); /* says so */
    mxa_cache_opts complete = *o;
    if (o->recipe && o->recipe->smooth_k == MXA_SMOOTH_GIVEN && !o->mean)
        complete.mean = &some;
    mxa_status status = mxa_cache_describe_opts(&complete, &described);
    const int64_t wanted[6] = {
        o->batch, o->heads_kv, o->head_dim, o->head_dim_v, o->page_tokens, o->rewind
    };
    const int64_t in_file[6] = {
        f->batch, f->heads_kv, f->head_dim, f->head_dim_v, f->page_tokens, f->rewind
    };
    static const char *const names[6] = { "batch",      "heads_kv",    "head_dim",
                                          "head_dim_v", "page_tokens", "rewind" };
    for (int i = 0; i < 6 && status == MXA_OK; i++)
        status = check_number(names[i], wanted[i], in_file[i]);
    char own[512], saved[512];
    if (status != MXA_OK)
        return status;
    mxa_recipe_text(&described.recipe, own, sizeof own);
    mxa_recipe_text(&r->numbers.recipe, saved, sizeof saved);
    if (strcmp(own, saved) != 0)
        return mxa_fail(MXA_ERR_ARG, "recipe: %.200s is not the file's %.200s", own, saved);
    return o->g_v && !r->numbers.has_g_v ? mxa_fail(MXA_ERR_ARG, "g_v: given, but not in the file") : MXA_OK;
}

/* All of the data before any memory is taken for it: what lengths say is then what was written. */
static mxa_status check_data(reader *r)
{
    uint8_t block[READ_BYTES];
    uint64_t sum = r->checksum;
    for (int64_t left = r->data_bytes; left > 0; left -= READ_BYTES) {
        const size_t bytes = (size_t)mxa_min(left, READ_BYTES);
        if (fread(block, 1, bytes, r->file) != bytes)
            return bad_file(r, "cannot be read");
        sum = mxa_cache_checksum(sum, block, bytes);
    }
    if (sum != r->numbers.checksum)
        return bad_file(r, "was altered: its checksum is another");
    return fseek(r->file, MXA_CACHE_FILE_LENGTH_BYTES + r->header_bytes, SEEK_SET) == 0
               ? MXA_OK
               : bad_file(r, "cannot be read");
}

static bool read_bytes(reader *r, void *to, size_t bytes)
{
    return fread(to, 1, bytes, r->file) == bytes;
}

static mxa_status read_page(reader *r, const mxa_cache *c, int copy, uint8_t *page)
{
    if (!read_bytes(r, c->ops ? c->host_page : page, (size_t)c->layout.page_bytes[copy]))
        return bad_file(r, "cannot be read");
    return c->ops ? mxa_cache_result(c, c->ops->write_page(c->device, copy, page, c->host_page)) : MXA_OK;
}

/* The pages of one kind of a sequence, whose table has room. */
static mxa_status read_pages(reader *r, mxa_cache *c, int64_t b, int copy)
{
    mxa_cache_sequence *const s = &c->sequences[b];
    const int64_t n = r->saved[b].n_pages[copy], all = mxa_cache_pages_of(c, r->saved[b].length);
    mxa_status status = n > 0 && c->layout.page_bytes[copy] == 0
                            ? bad_file(r, "has pages of a kind that its recipe has not")
                            : mxa_pool_reserve(&c->pool[copy], n);
    int32_t *const index = status == MXA_OK ? malloc((size_t)(n + 1) * sizeof *index) : NULL;
    if (status == MXA_OK && !index)
        status = no_memory(r);
    if (status == MXA_OK && !read_bytes(r, index, (size_t)n * sizeof *index))
        status = bad_file(r, "cannot be read");
    for (int64_t i = 0; i < n && status == MXA_OK; i++) {
        if (index[i] < 0 || index[i] >= all || s->table[copy][index[i]] >= 0) {
            status = bad_file(r, "has altered page numbers");
            continue;
        }
        const int32_t page = s->table[copy][index[i]] = mxa_pool_take(&c->pool[copy]);
        status = read_page(r, c, copy, c->pool[copy].pages[page]);
    }
    free(index);
    return status;
}

static mxa_status read_sequence(reader *r, mxa_cache *c, int64_t b)
{
    mxa_cache_sequence *const s = &c->sequences[b];
    const mxa_cache_saved *const saved = &r->saved[b];
    if (saved->length > MXA_POSITION_MAX)
        return bad_file(r, "holds lengths that no cache has");
    const int64_t pages = mxa_cache_pages_of(c, saved->length);
    mxa_status status = mxa_cache_grow_tables(c, s, mxa_max(pages, 1));
    for (int copy = 0; copy < MXA_COPIES && status == MXA_OK; copy++)
        memset(s->table[copy], 0xFF, (size_t)pages * sizeof *s->table[copy]); /* -1 */
    s->length = status == MXA_OK ? saved->length : 0;
    s->high_first = saved->high_first;
    s->unsent_first = 0;
    s->unsent_length = true;
    for (int copy = 0; copy < MXA_COPIES && status == MXA_OK; copy++)
        status = read_pages(r, c, b, copy);
    const mxa_cache_table table = {
        s->length, s->high_first, pages, { s->table[MXA_LOW], s->table[MXA_HIGH] }
    };
    if (status == MXA_OK && mxa_cache_check_table(c, &table) != MXA_OK)
        status = bad_file(r, "lacks pages that its lengths need");
    return status;
}

static mxa_status read_data(reader *r, mxa_cache *c)
{
    const size_t mean_bytes = (size_t)(c->opts.heads_kv * c->opts.head_dim) * sizeof(float);
    mxa_status status = MXA_OK;
    if (c->recipe.smooth_k == MXA_SMOOTH_GIVEN) {
        if (!read_bytes(r, c->sequences[0].mean, mean_bytes))
            status = bad_file(r, "cannot be read");
        for (int64_t b = 1; b < c->opts.batch; b++)
            memcpy(c->sequences[b].mean, c->sequences[0].mean, mean_bytes);
        if (c->ops && status == MXA_OK)
            status = mxa_cache_result(c, c->ops->set_mean(c->device, c->sequences[0].mean));
    }
    for (int64_t b = 0; b < c->opts.batch && status == MXA_OK; b++)
        status = read_sequence(r, c, b);
    if (status == MXA_OK && r->mean && memcmp(r->mean, c->sequences[0].mean, mean_bytes) != 0)
        status = mxa_fail(MXA_ERR_ARG, "mean: is not that of \"%.200s\"", r->path);
    for (int64_t b = 0; b < c->opts.batch && status == MXA_OK && !c->ops; b++)
        if (c->sequences[b].length >= MXA_TILE)
            mxa_cache_set_mean(c, b);
    return status == MXA_OK ? mxa_cache_send_all(c) : status;
}

/* The factors of V's channels, *g_v of malloc, where the file has some: those that opts give, if they do. */
static mxa_status read_factors(reader *r, const mxa_cache_opts *opts, float **g_v)
{
    const mxa_cache_opts *const o = &r->numbers.opts;
    const size_t bytes = (size_t)(o->heads_kv * o->head_dim_v) * sizeof **g_v;
    if (!r->numbers.has_g_v)
        return MXA_OK;
    *g_v = malloc(bytes);
    if (!*g_v)
        return no_memory(r);
    if (!read_bytes(r, *g_v, bytes))
        return bad_file(r, "cannot be read");
    if (opts && opts->g_v && memcmp(opts->g_v, *g_v, bytes) != 0)
        return mxa_fail(MXA_ERR_ARG, "g_v: is not that of \"%.200s\"", r->path);
    return MXA_OK;
}

static mxa_status load(reader *r, const mxa_cache_opts *opts, const mxa_kv_device_ops *ops, mxa_cache **cache)
{
    mxa_status status = read_header(r);
    if (status == MXA_OK)
        status = check_header(r);
    if (status == MXA_OK && opts)
        status = check_opts(opts, r);
    if (status == MXA_OK)
        status = check_data(r);
    if (status != MXA_OK)
        return status;
    mxa_cache_opts own = opts ? *opts : r->numbers.opts;
    const bool given = r->numbers.recipe.smooth_k == MXA_SMOOTH_GIVEN;
    float *const mean = given ? calloc((size_t)(own.heads_kv * own.head_dim), sizeof *mean) : NULL;
    if (given && !mean)
        return no_memory(r);
    float *g_v = NULL;
    status = read_factors(r, opts, &g_v);
    own.g_v = g_v;
    r->mean = opts ? opts->mean : NULL;
    own.mean = mean;
    mxa_cache *made = NULL;
    if (status == MXA_OK)
        status = mxa_cache_make(&own, ops, &made);
    free(mean);
    free(g_v);
    if (status == MXA_OK)
        status = read_data(r, made);
    if (status != MXA_OK)
        mxa_cache_free(made);
    else
        *cache = made;
    return status;
}

mxa_status mxa_cache_read(const char *path, const mxa_cache_opts *opts, const mxa_kv_device_ops *ops,
                          mxa_cache **cache)
{
    reader r = { .path = path, .file = fopen(path, "rb") };
    if (!r.file)
        return mxa_fail(MXA_ERR_FILE, "path: \"%.200s\" cannot be opened: %m", path);
    const mxa_status status = load(&r, opts, ops, cache);
    fclose(r.file);
    free(r.header);
    free(r.saved);
    return status;
}
