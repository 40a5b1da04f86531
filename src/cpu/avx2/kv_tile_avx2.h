/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the AVX2 attention to a KV cache share: one unit's scratch, and the tile at work. */
#ifndef MXA_CPU_AVX2_KV_TILE_AVX2_H
#define MXA_CPU_AVX2_KV_TILE_AVX2_H

#include "cpu/avx2/products_avx2.h"
#include "cpu/kv_attend_cpu.h"

/* How Q and K of a copy are multiplied; E2M1 is INT8 by MXFP4. */
typedef enum mxa_kv_product { MXA_KV_F32, MXA_KV_INT8, MXA_KV_E2M1 } mxa_kv_product;

typedef struct mxa_kv_queries_avx2 {
    mxa_kv_product product;
    int64_t dim;     /* F32: head_dim; INT8, E2M1: padded with zeros to whole groups of 16, blocks of 32 */
    void *q;         /* [rows][dim] float, int16_t or, in the order of E2M1's nibbles, int8_t */
    int32_t *starts; /* E2M1: [rows][dim / 32] what a block's 16-bit sums start with */
    float *factor;   /* [rows] scale and g_q, in base 2 unless there is a softcap */
    float *bias;     /* [rows] in the same units */
} mxa_kv_queries_avx2;

typedef struct mxa_kv_work_avx2 {
    const mxa_kv_job *job;
    const mxa_kv_unit *unit;
    int64_t rows;
    mxa_kv_queries_avx2 q[MXA_COPIES];

    /* The tile: keys [begin, end) count from its first; copies of K and V. */
    int64_t first, begin, end;
    int copy, v_copy;

    float *logits;  /* [rows][MXA_TILE], then P in their place */
    float *g_k;     /* [MXA_TILE] */
    float *alpha;   /* [rows] what O so far is multiplied with */
    float *scaled;  /* [rows][MXA_TILE] P times the factors of V */
    float *g_v;     /* [channels / 32][MXA_TILE] of blocks, or [MXA_TILE] of tokens */
    float *channel; /* [MXA_COPIES][channels] factors of V's channels, 1 where there are none */
    void *raw;      /* rows as they are decoded: 16 keys, or V of the tile */
    void *k;        /* 16 keys side by side */
    float *k_scale; /* [dim / 32][16] */

    const uint8_t *next_k; /* these 16 keys' place in the next tile; bytes of so many rows */
    int64_t next_bytes;
} mxa_kv_work_avx2;

static inline int64_t mxa_kv_whole_groups(int64_t n)
{
    return (n + MXA_AVX2_COLS - 1) & -(int64_t)MXA_AVX2_COLS;
}

/* Rows of 16 keys, of which a page holds all or none, from key j of the tile on. */
static inline mxa_kv_rows mxa_kv_group(const mxa_kv_work_avx2 *w, int copy, int operand, int64_t j)
{
    const mxa_kv_sequence *const s = &w->job->view->sequences[w->unit->b];
    return mxa_kv_rows_at(w->job->view, copy, operand, s, w->unit->h_kv, w->first + j,
                          w->first + j + MXA_AVX2_COLS);
}

/* The codes of the group that stands at the same place in the next tile; if there is none, of this tile. */
static inline const uint8_t *mxa_kv_next_group(const mxa_kv_work_avx2 *w, int copy, int operand, int64_t j)
{
    const mxa_kv_sequence *const s = &w->job->view->sequences[w->unit->b];
    const int64_t token = w->first + MXA_TILE + j;
    const bool there = token < s->length && s->table[copy][token / w->job->view->layout->page_tokens] >= 0;
    return mxa_kv_group(w, copy, operand, there ? MXA_TILE + j : j).codes;
}

/*
 * n bytes towards the L2 cache. Pages end after a few kilobytes, and with them what the processor foresees;
 * asked for all at once, they would fill its buffers for misses and halt it. Inlined by force: GCC 12 takes a
 * function that only prefetches for one without effect, and drops its calls.
 */
MXA_AVX2_INLINE void mxa_kv_prefetch(const uint8_t *at, int64_t n)
{
    enum { LINE = 64 };
    for (int64_t i = 0; i < n; i += LINE)
        _mm_prefetch((const char *)at + i, _MM_HINT_T1);
}

/* Factors of 16 keys; g NULL: 1. */
static inline void mxa_kv_factors(const float *g, float *out)
{
    for (int half = 0; half < MXA_AVX2_COLS; half += MXA_AVX2_LANES)
        _mm256_store_ps(out + half, g ? _mm256_loadu_ps(g + half) : _mm256_set1_ps(1.0f));
}

/*
 * 2^(b - 128) of eight scale bytes, the unit of doubled E2M1; NaN for NaN and where an element may
 * saturate.
 */
static inline __m256 mxa_kv_half_scales(__m256i bytes)
{
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(bytes, _mm256_set1_epi32(1)), 23);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(1 << 21), bytes);
    const __m256i is_normal = _mm256_cmpgt_epi32(bytes, _mm256_set1_epi32(1));
    const __m256i is_large = _mm256_cmpgt_epi32(bytes, _mm256_set1_epi32(252));
    const __m256i finite = _mm256_blendv_epi8(subnormal, normal, is_normal);
    return _mm256_castsi256_ps(_mm256_or_si256(finite, is_large));
}

/* Those of block b of eight rows, cols bytes each. */
static inline __m256 mxa_kv_block_scales(const uint8_t *scales, int64_t cols, int64_t b)
{
    const __m256i low_byte = _mm256_set1_epi32(0xFF);
    if (cols == sizeof(int32_t)) {
        const __m256i rows = _mm256_loadu_si256((const void *)scales);
        return mxa_kv_half_scales(
            _mm256_and_si256(_mm256_srl_epi32(rows, _mm_cvtsi64_si128(8 * b)), low_byte));
    }
    int32_t bytes[MXA_AVX2_LANES];
    for (int i = 0; i < MXA_AVX2_LANES; i++)
        bytes[i] = scales[i * cols + b];
    return mxa_kv_half_scales(_mm256_loadu_si256((const void *)bytes));
}

mxa_kv_product mxa_kv_product_avx2(const mxa_kv_job *job, int copy);

/*
 * The unit's queries of a copy; dot products of all of them with the tile's keys, block scales multiplied
 * in.
 */
void mxa_kv_load_q_avx2(mxa_kv_work_avx2 *w, int copy);
void mxa_kv_dots_avx2(mxa_kv_work_avx2 *w);

/* How V of the tile is read. */
enum { MXA_KV_BYTES, MXA_KV_HALVES_BF16, MXA_KV_HALVES_F16, MXA_KV_FLOATS };

typedef struct mxa_kv_values {
    int kind;
    bool blocks;                                   /* g_v has a row for each 32 channels */
    const void *group[MXA_TILE / MXA_AVX2_COLS];   /* of 16 keys */
    const uint8_t *next[MXA_TILE / MXA_AVX2_COLS]; /* the same of the next tile */
    int64_t slice;                                 /* bytes of 16 rows there for each 16 channels here */
    int64_t stride;                                /* elements of a row */
} mxa_kv_values;

/* O = O alpha + P V in channels [c, c + 16) of all rows; p [rows][MXA_TILE] with the factors of V. */
typedef void mxa_kv_multiply_fn(const mxa_kv_work_avx2 *w, const mxa_kv_values *v, const float *p, int64_t c,
                                float *o);
mxa_kv_multiply_fn mxa_kv_multiply_avx2;
void mxa_kv_add_values_avx2(mxa_kv_work_avx2 *w, mxa_kv_multiply_fn *multiply, float *o);

/* What a level with wider vectors does in its own way. */
typedef struct mxa_kv_phases {
    void (*dots)(mxa_kv_work_avx2 *w);
    mxa_kv_multiply_fn *multiply;
} mxa_kv_phases;

/* mxa_kv_segment_fn with these phases. */
void mxa_kv_segment_phases_avx2(const mxa_kv_job *job, const mxa_kv_unit *u, mxa_span tiles, void *scratch,
                                const mxa_kv_sums *sums, const mxa_kv_phases *phases);

#endif
