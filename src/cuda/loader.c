/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* dladdr, secure_getenv */
#include "cuda/loader.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/status.h"

#define LIBRARY_VARIABLE "MXA_CUDA_LIBRARY"

enum { PATH_BYTES = 4096, REASON_BYTES = 512 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const mxa_cuda_backend *backend;
static char reason[REASON_BYTES]; /* why there is no backend */

/* The path of the library beside the one that holds this code; false if that is not known. */
static bool path_beside(char path[PATH_BYTES])
{
    Dl_info self;
    if (!dladdr((void *)&once, &self) || !self.dli_fname)
        return false;
    const char *const slash = strrchr(self.dli_fname, '/');
    const int folder = slash ? (int)(slash - self.dli_fname) + 1 : 0;
    return snprintf(path, PATH_BYTES, "%.*s%s", folder, self.dli_fname, MXA_CUDA_LIBRARY_NAME) < PATH_BYTES;
}

static void *open_library(void)
{
    const char *const named = secure_getenv(LIBRARY_VARIABLE);
    void *library;
    if (named && *named) {
        library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            snprintf(reason, sizeof reason, "%s names \"%.200s\", which cannot be loaded: %s",
                     LIBRARY_VARIABLE, named, dlerror());
        return library;
    }
    char path[PATH_BYTES];
    const bool is_beside = path_beside(path) && access(path, F_OK) == 0;
    library = dlopen(is_beside ? path : MXA_CUDA_LIBRARY_NAME, RTLD_NOW | RTLD_LOCAL);
    if (!library && is_beside)
        snprintf(reason, sizeof reason, "%s beside libmxattn.so cannot be loaded: %s", MXA_CUDA_LIBRARY_NAME,
                 dlerror());
    else if (!library)
        snprintf(reason, sizeof reason,
                 "CUDA needs %s beside libmxattn.so or in the linker's search path, or named by %s: %s",
                 MXA_CUDA_LIBRARY_NAME, LIBRARY_VARIABLE, dlerror());
    return library;
}

static bool same_abi(const mxa_cuda_abi *a, const mxa_cuda_abi *b)
{
    return a->number == b->number && a->major == b->major && a->minor == b->minor && a->patch == b->patch &&
           a->plan_bytes == b->plan_bytes && a->args_bytes == b->args_bytes &&
           a->copy_bytes == b->copy_bytes && a->info_bytes == b->info_bytes && a->kv_bytes == b->kv_bytes;
}

static void load(void)
{
    void *const library = open_library();
    if (!library)
        return;
    mxa_cuda_backend_fn *entry;
    *(void **)&entry = dlsym(library, MXA_CUDA_ENTRY_NAME);
    if (!entry) {
        snprintf(reason, sizeof reason, "the CUDA library that was found is not mxattn's: it has no %s",
                 MXA_CUDA_ENTRY_NAME);
        return;
    }
    const mxa_cuda_backend *const found = entry();
    const mxa_cuda_abi here = MXA_CUDA_ABI_HERE;
    if (same_abi(&found->abi, &here))
        backend = found;
    else
        snprintf(reason, sizeof reason,
                 "%s is of version %d.%d.%d, interface %u, and libmxattn.so of version %d.%d.%d, "
                 "interface %u; both must come from one build",
                 MXA_CUDA_LIBRARY_NAME, found->abi.major, found->abi.minor, found->abi.patch,
                 found->abi.number, here.major, here.minor, here.patch, here.number);
}

mxa_status mxa_cuda_table(mxa_device device, const mxa_cuda_backend **table)
{
    pthread_once(&once, load);
    if (!backend && device < MXA_DEVICE_CUDA_0)
        return mxa_fail(MXA_ERR_DEVICE, "device: %s", reason);
    if (!backend)
        return mxa_fail(MXA_ERR_DEVICE, "device: cuda:%d: %s", device - MXA_DEVICE_CUDA_0, reason);
    *table = backend;
    return MXA_OK;
}

mxa_status mxa_cuda_result(const mxa_cuda_backend *table, mxa_status status)
{
    return status == MXA_OK ? MXA_OK : mxa_fail(status, "%s", table->error_text());
}
