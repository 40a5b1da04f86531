/* SPDX-License-Identifier: Apache-2.0 */
#include "safetensors.h"

#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_HEADER_BYTES 100000000 /* the format's own limit */
#define LIST_BYTES       400       /* of a message that lists names */

/* Read exactly bytes from an offset. */
static bool read_at(const st_file *file, uint64_t offset, void *out, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        const ssize_t n = pread(file->fd, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            cli_fail("%s: cannot read byte %" PRIu64 ": %s", file->path, offset + done,
                     n < 0 ? strerror(errno) : "the file became shorter");
            return false;
        }
        done += (uint64_t)n;
    }
    return true;
}

static bool open_regular(st_file *file, uint64_t *bytes)
{
    struct stat info;
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0 || fstat(file->fd, &info) != 0) {
        cli_fail("%s: cannot open: %s", file->path, strerror(errno));
        return false;
    }
    if (!S_ISREG(info.st_mode)) {
        cli_fail("%s: not a regular file, which a safetensors input must be", file->path);
        return false;
    }
    *bytes = (uint64_t)info.st_size;
    return true;
}

bool st_open(st_file *file, const char *path)
{
    *file = (st_file){ .path = path, .fd = -1 };
    uint64_t file_bytes, header_bytes = 0;
    uint8_t length[ST_LENGTH_BYTES];
    if (!open_regular(file, &file_bytes))
        return false;
    if (file_bytes < ST_LENGTH_BYTES) {
        cli_fail("%s: %" PRIu64 " bytes long, a safetensors file has at least %d", path, file_bytes,
                 ST_LENGTH_BYTES);
        return false;
    }
    if (!read_at(file, 0, length, ST_LENGTH_BYTES))
        return false;
    for (int i = ST_LENGTH_BYTES - 1; i >= 0; i--)
        header_bytes = header_bytes << 8 | length[i];
    if (header_bytes > MAX_HEADER_BYTES) {
        cli_fail("%s: a header of %" PRIu64 " bytes, the limit is %d (is it a safetensors file?)", path,
                 header_bytes, MAX_HEADER_BYTES);
        return false;
    }
    if (header_bytes == 0 || header_bytes > file_bytes - ST_LENGTH_BYTES) {
        cli_fail("%s: a header of %" PRIu64 " bytes does not fit the file's %" PRIu64 " (truncated?)", path,
                 header_bytes, file_bytes);
        return false;
    }
    file->data_start = ST_LENGTH_BYTES + header_bytes;
    char *text = cli_alloc(header_bytes, "the header");
    const bool ok = text != NULL && read_at(file, ST_LENGTH_BYTES, text, header_bytes) &&
                    st_parse(file, text, header_bytes, file_bytes - file->data_start);
    free(text);
    return ok;
}

void st_close(st_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    json_decref(file->header);
    free(file->tensors);
    *file = (st_file){ .fd = -1 };
}

const st_tensor *st_find(const st_file *file, const char *name)
{
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

const st_tensor *st_require(const st_file *file, const char *name)
{
    const st_tensor *tensor = st_find(file, name);
    if (tensor != NULL)
        return tensor;
    char list[LIST_BYTES] = "";
    size_t used = 0;
    for (size_t i = 0; i < file->count && used < sizeof list; i++)
        used +=
            (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? " " : "", file->tensors[i].name);
    cli_fail("%s: no tensor \"%.80s\"; it holds: %s", file->path, name, file->count ? list : "none");
    return NULL;
}

const char *st_metadata(const st_file *file, const char *key)
{
    return json_string_value(json_object_get(json_object_get(file->header, ST_METADATA_KEY), key));
}

void *st_load(const st_file *file, const st_tensor *tensor)
{
    const uint64_t bytes = tensor->end - tensor->begin;
    char use[128];
    snprintf(use, sizeof use, "tensor \"%.80s\"", tensor->name);
    void *data = cli_alloc(bytes, use);
    if (data != NULL && !read_at(file, file->data_start + tensor->begin, data, bytes)) {
        free(data);
        return NULL;
    }
    return data;
}
