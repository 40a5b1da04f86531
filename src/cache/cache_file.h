/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of a cache: safetensors whose header is a function of a few numbers. A reader takes the numbers,
 * writes the header again and compares, so that nothing in a header can differ unseen (docs/cache.md).
 */
#ifndef MXA_CACHE_CACHE_FILE_H
#define MXA_CACHE_CACHE_FILE_H

#include <stdio.h>

#include "cache/cache.h"

enum { MXA_CACHE_FILE_LENGTH_BYTES = 8, MXA_CACHE_CHECKSUM_DIGITS = 16 };

/* What is in the file of one sequence. */
typedef struct mxa_cache_saved {
    int64_t length, high_first;
    int64_t n_pages[MXA_COPIES];
} mxa_cache_saved;

/* FNV-1a over bytes: a changed byte always changes it. */
#define MXA_CACHE_CHECKSUM_START UINT64_C(0xCBF29CE484222325)
uint64_t mxa_cache_checksum(uint64_t sum, const void *data, size_t bytes);

/* The header's text with a checksum, padded with blanks to 8 bytes; malloc'ed, NULL if there is no memory. */
char *mxa_cache_header(const mxa_cache *cache, const mxa_cache_saved *saved, uint64_t checksum,
                       size_t *bytes);

/* Bytes of tensors after the header; -1 if they do not fit. */
int64_t mxa_cache_data_bytes(const mxa_cache *cache, const mxa_cache_saved *saved);

/* The numbers of a header. False if it does not begin as one of ours does. */
typedef struct mxa_cache_numbers {
    uint64_t checksum;
    mxa_cache_opts opts; /* recipe points to the one here */
    mxa_recipe recipe;
    bool has_g_v;
    const char *sequences; /* the rest, read by mxa_cache_read_sequences */
} mxa_cache_numbers;

bool mxa_cache_read_numbers(const char *header, mxa_cache_numbers *numbers);

/* saved [batch]; false as above. */
bool mxa_cache_read_sequences(const char *rest, int64_t batch, mxa_cache_saved *saved);

#endif
