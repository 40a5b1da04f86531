/* SPDX-License-Identifier: Apache-2.0 */
#include "device_memory.h"

#include "cli.h"

static bool check(mxa_status status)
{
    if (status != MXA_OK)
        cli_fail("%s", mxa_error_text());
    return status == MXA_OK;
}

bool device_alloc(device_memory *m, uint64_t bytes, void **memory)
{
    if (m->count == DEVICE_PIECES) {
        cli_fail("more than %d arrays on a device", DEVICE_PIECES);
        return false;
    }
    if (!check(mxa_device_alloc(m->device, bytes, memory)))
        return false;
    m->pieces[m->count++] = *memory;
    return true;
}

bool device_upload(device_memory *m, uint64_t bytes, void **memory)
{
    const void *const host = *memory;
    return host == NULL ||
           (device_alloc(m, bytes, memory) && check(mxa_device_copy(m->device, *memory, host, bytes)));
}

bool device_download(const device_memory *m, const void *memory, uint64_t bytes, void *host)
{
    return check(mxa_device_copy(m->device, host, memory, bytes));
}

void device_free(device_memory *m)
{
    while (m->count > 0)
        check(mxa_device_free(m->device, m->pieces[--m->count]));
}
