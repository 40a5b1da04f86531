/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file: it is refused with a sentence, or each of its tensors can be loaded. */
#define _GNU_SOURCE /* memfd_create */
#include "cli.h"
#include "safetensors.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEMORY_LIMIT (UINT64_C(1) << 26)

/* The command's own versions print and allocate as asked. */
int cli_fail(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return CLI_FAILED;
}

void *cli_alloc(uint64_t bytes, const char *use)
{
    (void)use;
    return bytes < MEMORY_LIMIT ? malloc(bytes + 1) : NULL;
}

static void require(bool truth)
{
    if (!truth)
        abort();
}

static void read_everything(const st_file *file, size_t size)
{
    uint64_t end = 0;
    for (size_t i = 0; i < file->count; i++) {
        const st_tensor *tensor = &file->tensors[i];
        require(tensor->begin == end && tensor->end >= end);
        require(st_find(file, tensor->name) == tensor);
        end = tensor->end;
        void *data = st_load(file, tensor);
        require(data != NULL);
        free(data);
    }
    require(file->data_start + end == size);
    st_require(file, "no such tensor");
    st_metadata(file, "k.format");
}

/* The bytes as a file. */
static void try_file(const uint8_t *data, size_t size)
{
    char path[32];
    const int memory = memfd_create("fuzz", MFD_CLOEXEC);
    if (memory < 0 || write(memory, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    st_file file;
    if (st_open(&file, path))
        read_everything(&file, size);
    st_close(&file);
    close(memory);
}

/*
 * The bytes after the first as a header, the first as how many bytes of data follow it: lengths that always
 * fit.
 */
static void try_header(const uint8_t *data, size_t size)
{
    st_file file = { .path = "fuzz", .fd = -1 };
    if (st_parse(&file, (const char *)data + 1, size - 1, data[0]))
        require(file.count == 0 || file.tensors[file.count - 1].end == data[0]);
    st_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_file(data, size);
    if (size > 1)
        try_header(data, size);
    return 0;
}
